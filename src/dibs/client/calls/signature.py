"""A function as something to be called later, elsewhere: which ones can be, their names, their arguments."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from dibs.client.options.serde import Serde, dec_hook
from dibs.errors import BadHandler, PermanentError, Refused

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_MAIN = ("__main__", "__mp_main__")
_QUOTED = re.compile(r"'(\w+)'")
#: What every form of data says as it is.
_PLAIN = (str, int, bool, float)


class TaskPayload(msgspec.Struct, forbid_unknown_fields=True):
    """A task's payload."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _NoKeywords(msgspec.Struct, forbid_unknown_fields=True):
    """Of a payload with none."""


class CallSignature:
    """How a function is called: arguments to a payload, and a payload to arguments of the hinted types."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._signature = inspect.signature(function)

    def payload(self, serde: Serde, args: Args, kwargs: Kwargs) -> bytes:
        """Return the arguments encoded. Raises Refused naming the parameter at fault."""
        fits = not kwargs and (tuple(map(type, args)) in self._plain or self._taken_as_they_are(args))
        if not fits:
            bound = self._bind(args, kwargs).arguments
            fits = all(self._fits(name, value) for name, value in bound.items())
        raw = serde.encode(TaskPayload(list(args), kwargs))
        if not fits:
            self.check(serde, raw)
        return raw

    @cached_property
    def _plain(self) -> frozenset[tuple[type, ...]]:
        """The types of arguments that are what all their parameters want, as most calls have them."""
        lists = (wanted.__args__ for wanted in self._by_position.values())
        return frozenset(types for types in lists if all(hint in _PLAIN for hint in types))

    def _taken_as_they_are(self, args: Args) -> bool:
        wanted = self._by_position.get(len(args))
        return wanted is not None and all(map(_is_plain, wanted.__args__, args))

    def check(self, serde: Serde, payload: bytes) -> None:
        """Refuse a payload that could not be made into the arguments, as a worker would make them."""
        try:
            self.arguments(serde, payload)
        except PermanentError as error:
            raise _refused(str(error), str(error)) from error

    def _bind(self, args: Args, kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _refused(f"{self.function.__name__}{self._signature}: {error}", str(error)) from None

    def arguments(self, serde: Serde, payload: bytes) -> tuple[Args, Kwargs]:
        """Return a payload as arguments, each as its parameter's type. Raises PermanentError."""
        if (form := self._form) is not None:
            try:
                return serde.decode(payload, form).args, {}
            except (ValueError, TypeError, NotImplementedError):
                # Given by name, or not what is wanted: below, the error names the one at fault.
                pass
        args, kwargs = split(serde, payload)
        if not kwargs and len(args) in self._by_position:
            try:
                return self._converted_together(args), {}
            except (ValueError, TypeError, NotImplementedError):
                # Below, each is converted by itself: the error names the one at fault.
                pass
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PermanentError(f"the payload does not fit {self.function.__name__}: {error}") from error
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._convert(name, value)
        return bound.args, bound.kwargs

    def _converted_together(self, args: Args) -> Args:
        """Convert by one call; a worker does this for every job, and binding took a quarter of its CPU."""
        wanted = self._by_position[len(args)]
        converted: Args = msgspec.convert(args, wanted, dec_hook=dec_hook, str_keys=True)
        return converted

    @cached_property
    def _form(self) -> Any:
        """A payload whose arguments are all given by position, where there is one number of them.

        To decode it as this takes a third of decoding it as anything and converting that; a Struct, because
        of these alone msgspec remembers what they are made of.
        """
        if len(self._by_position) != 1:
            return None
        (wanted,) = self._by_position.values()
        return msgspec.defstruct(
            "ByPosition", [("args", wanted), ("kwargs", _NoKeywords)], forbid_unknown_fields=True, frozen=True
        )

    @cached_property
    def _by_position(self) -> dict[int, GenericAlias]:
        """The tuple of arguments given by position alone, for each number of them that can be."""
        known = self._signature.parameters.values()
        if any(one.kind is inspect.Parameter.KEYWORD_ONLY and one.default is one.empty for one in known):
            return {}
        names = self.positional
        needed = sum(self._signature.parameters[name].default is inspect.Parameter.empty for name in names)
        hints = tuple(self.hints.get(name, Any) for name in names)
        return {count: GenericAlias(tuple, hints[:count]) for count in range(needed, len(names) + 1)}

    def converted(self, name: str, value: Any) -> Any:
        """Return a decoded value as the type of a parameter. Raises PermanentError."""
        try:
            return msgspec.convert(value, self.hints.get(name, Any), dec_hook=dec_hook, str_keys=True)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise PermanentError(f"argument {name!r} of {self.function.__name__}: {error}") from error

    def takes_as_it_is(self, name: str, value: Any) -> bool:
        """Tell, sooner than by decoding it, whether a value comes back as what the parameter wants."""
        return _is_plain(self.hints.get(name, Any), value)

    def _fits(self, name: str, value: Any) -> bool:
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return all(self.takes_as_it_is(name, item) for item in value)
        if kind is inspect.Parameter.VAR_KEYWORD:
            return all(self.takes_as_it_is(name, item) for item in value.values())
        return self.takes_as_it_is(name, value)

    def _convert(self, name: str, value: Any) -> Any:
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(self.converted(name, item) for item in value)
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: self.converted(name, item) for key, item in value.items()}
        return self.converted(name, value)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of parameters and return, read when first needed: they may be defined further below."""
        try:
            return get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise BadHandler(
                f"{self.function.__name__}: {error.name!r} in its annotations cannot be found at run time; "
                "import it outside `if TYPE_CHECKING`"
            ) from error

    @property
    def returns(self) -> Any:
        """What the function says it returns."""
        return self.hints.get("return", Any)

    @property
    def positional(self) -> list[str]:
        """The names of the parameters that may be given by position."""
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, one in self._signature.parameters.items() if one.kind in by_position]


def _is_plain(hint: Any, value: Any) -> bool:
    return hint is Any or (hint in _PLAIN and type(value) is hint)


def _refused(message: str, reason: str) -> Refused:
    """Return the refusal of a call; whoever gives the reason quotes the parameter at fault first."""
    named = _QUOTED.search(reason)
    return Refused(message, field=named[1] if named else "")


def split(serde: Serde, payload: bytes) -> tuple[Args, Kwargs]:
    """Return what a task's payload holds, as it was written. Raises PermanentError."""
    try:
        written = serde.decode(payload, TaskPayload)
    except ValueError as error:
        raise PermanentError(f'a task\'s payload is {{"args": [...], "kwargs": {{...}}}}: {error}') from error
    return tuple(written.args), written.kwargs


def check_function(function: Any) -> None:
    """Refuse what a worker in another process could not import or call. Raises BadHandler."""
    name = getattr(function, "__qualname__", None)
    if not inspect.isfunction(function) or name is None:
        raise BadHandler(f"{function!r} cannot be a handler: write a function with `def` or `async def`")
    if function.__name__ == "<lambda>":
        raise BadHandler("a lambda cannot be a handler: a worker could not import it; write a `def` function")
    if "<locals>" in name:
        raise BadHandler(
            f"{name} is defined inside a function, where no worker can import it: move it to the module's top"
        )
    if "." in name:
        raise BadHandler(
            f"{name} is a method, and a worker has no object to call it on: "
            "write a function that makes the object and calls it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadHandler(f"{name} yields, and a job has one result: return it, and report progress instead")


def name_of(function: Callable[..., Any]) -> str:
    """Return the queue name of a function: module.function. Raises BadHandler in a notebook."""
    module = function.__module__
    if module in _MAIN:
        module = _main_name(module, function.__name__)
    return f"{module}.{function.__name__}"


def _main_name(module: str, function: str) -> str:
    """Return the name under which a worker imports the program that is running."""
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None and not spec.name.endswith("__main__"):
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        raise BadHandler(f'{function} is defined where there is no file: name its queue, queue="..."')
    from pathlib import Path  # noqa: PLC0415 - only for a program that has no name as a module

    return Path(file).stem
