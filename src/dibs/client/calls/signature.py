"""Signatures of handler functions, which encode the arguments of a call and decode them again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from types import GenericAlias
from typing import Any, Never, NoReturn, get_type_hints

import msgspec

from dibs.client.calls.arrival import find_change, may_change_untyped
from dibs.client.calls.conversion import Converter, UnsupportedHintError, build_converter
from dibs.client.calls.hint_traits import HintTraits, read_traits
from dibs.client.calls.task_payload import (
    Args,
    ArgumentConverters,
    EmptyKwargs,
    Kwargs,
    PayloadMismatch,
    TaskPayload,
    decode_task_payload,
)
from dibs.client.options.job_settings import CALL_SETTINGS
from dibs.client.options.serde import JsonSerde, MessagePackSerde, Serde, data_format
from dibs.client.options.value_hooks import dec_hook
from dibs.errors import BadHandler, PermanentError, Refused

_QUOTED_NAME = re.compile(r"'(\w+)'")
#: Types whose values each serde decodes to equal values of the same type.
_PLAIN_TYPES = (str, int, bool, float)
_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class CallSignature:
    """The signature of a function, which encodes the arguments of a call and decodes them again.

    Decoding converts each argument to the type hint of its parameter.
    """

    def __init__(self, function: Callable[..., Any], *, exact: bool = True) -> None:
        self.function = function
        #: True if a call is refused when one of its arguments would arrive changed.
        self.exact = exact
        self._traits: dict[str, HintTraits] = {}
        self._signature = inspect.signature(function)

    def encode_arguments(self, serde: Serde, args: Args, kwargs: Kwargs) -> bytes:
        """Return the payload of a call. Raises Refused naming the parameter at fault."""
        fits = not kwargs and (
            tuple(map(type, args)) in self._plain_argument_types or self._args_need_no_conversion(args)
        )
        if not fits and (kwargs or len(args) not in self._positional_types):
            bound = self._bind_arguments(args, kwargs).arguments
            fits = all(self._argument_needs_no_conversion(name, value) for name, value in bound.items())
        try:
            if self._used_converters is not None:
                sent, named = self._used_converters.dump_call(serde, args, kwargs)
                raw = serde.encode(TaskPayload(list(sent), named))
            else:
                raw = serde.encode(TaskPayload(list(args), kwargs))
        except (ValueError, TypeError) as error:
            self._refuse_argument(serde, args, kwargs)
            raise Refused(f"{self.function.__name__}: {error}", field="data") from error
        if not fits:
            self._check_arrival(args, kwargs, self.check_payload(serde, raw))
        return raw

    def name_arguments(self, args: Args, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return each argument of a call, in its order, with the name of its parameter. Raises Refused."""
        self._bind_arguments(args, kwargs)
        last = len(self._names_by_position) - 1
        named = [(self._names_by_position[min(index, last)], value) for index, value in enumerate(args)]
        for keyword, value in kwargs.items():
            known = keyword in self._signature.parameters
            named.append((keyword if known else self._names_by_keyword[-1], value))
        return named

    def encode_argument(self, serde: Serde, name: str, value: Any) -> bytes:
        """Return one argument, encoded alone. Raises Refused if it does not fit, or would arrive changed."""
        try:
            raw = serde.encode(self.converters.dump(name, value))
        except (ValueError, TypeError) as error:
            raise Refused(f"argument {name!r} of {self.function.__name__}: {error}", field=name) from error
        if not self.needs_no_conversion(name, value):
            try:
                arrived = self.convert_argument(name, serde.decode(raw))
            except PermanentError as error:
                raise Refused(str(error), field=name) from error
            self.check_arrived_value(name, value, arrived)
        return raw

    def _refuse_argument(self, serde: Serde, args: Args, kwargs: Kwargs) -> None:
        """Raise Refused naming the first argument that the serde cannot encode alone, if there is one."""
        for name, value in self._bind_arguments(args, kwargs).arguments.items():
            try:
                serde.encode(self.converters.dump(name, value))
            except (ValueError, TypeError) as error:
                reason = (
                    f" {text}" if (text := str(error).removeprefix("data ")) != str(error) else f": {error}"
                )
                raise Refused(f"argument {name!r} of {self.function.__name__}{reason}", field=name) from error

    def _check_arrival(self, args: Args, kwargs: Kwargs, arrived: tuple[Args, Kwargs]) -> None:
        """Raise Refused with the name of the first argument that differs from its decoded value."""
        if not self.exact:
            return
        if kwargs:
            bound = self._bind_arguments(args, kwargs)
            args, kwargs = bound.args, bound.kwargs
        arrived_args, arrived_kwargs = arrived
        for index, (value, decoded) in enumerate(zip(args, arrived_args, strict=True)):
            name = self._names_by_position[min(index, len(self._names_by_position) - 1)]
            self.check_arrived_value(name, value, decoded)
        for keyword, value in kwargs.items():
            name = keyword if keyword in self._signature.parameters else self._names_by_keyword[-1]
            self.check_arrived_value(name, value, arrived_kwargs[keyword])

    def check_arrived_value(self, name: str, given: Any, arrived: Any, field: str = "") -> None:
        """Raise Refused if a value of the parameter would arrive changed. `field` replaces the name."""
        if not self.exact:
            return
        traits = self._traits.get(name)
        if traits is None:
            traits = self._traits[name] = read_traits(self.hints.get(name, Any))
        if change := find_change(traits, given, arrived):
            raise change.refuse(f"argument {name!r} of {self.function.__name__}", field or name)

    @cached_property
    def _names_by_position(self) -> list[str]:
        """The names of the parameters that take arguments by position; that of *args is the last."""
        return [name for name, one in self._signature.parameters.items() if one.kind not in _BY_KEYWORD]

    @cached_property
    def _names_by_keyword(self) -> list[str]:
        """The names of the parameters that take arguments by keyword only; that of **kwargs is the last."""
        return [name for name, one in self._signature.parameters.items() if one.kind in _BY_KEYWORD]

    @cached_property
    def _plain_argument_types(self) -> frozenset[tuple[type, ...]]:
        """The tuples of argument types with which a call surely fits, for parameters with plain hints.

        `def f(a: int, b: str = "")` has (int,) and (int, str). Most calls are found here, which is fast.
        """
        lists = (wanted.__args__ for wanted in self._positional_types.values())
        return frozenset(types for types in lists if all(hint in _PLAIN_TYPES for hint in types))

    def _args_need_no_conversion(self, args: Args) -> bool:
        wanted = self._positional_types.get(len(args))
        return wanted is not None and all(map(_has_plain_hint, wanted.__args__, args))

    def check_payload(self, serde: Serde, payload: bytes) -> tuple[Args, Kwargs]:
        """Return the arguments that a worker decodes. Raises Refused if it could not decode the payload."""
        try:
            return self.decode_arguments(serde, payload)
        except PermanentError as error:
            raise _refused_call(str(error), str(error)) from error

    def _bind_arguments(self, args: Args, kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            settings = CALL_SETTINGS.intersection(kwargs) - self._signature.parameters.keys()
            hint = "".join(f"; settings of a job go to .options({name}=...)" for name in sorted(settings)[:1])
            raise _refused_call(
                f"{self.function.__name__}{self._signature}: {error}{hint}", str(error)
            ) from None

    def decode_arguments(self, serde: Serde, payload: bytes) -> tuple[Args, Kwargs]:
        """Return the arguments of a payload, each converted to its type hint. Raises PayloadMismatch."""
        if (form := self._positional_payload) is not None:
            try:
                args = serde.decode(payload, form).args
                return (args if (used := self._used_converters) is None else used.load_positional(args)), {}
            except (ValueError, TypeError, NotImplementedError):
                # The payload has keyword arguments, or an argument does not fit. The slower code below
                # decodes keyword arguments, and its error names the parameter at fault.
                pass
        args, kwargs = decode_task_payload(serde, payload)
        if not kwargs and len(args) in self._positional_types:
            try:
                return self._convert_together(args), {}
            except (ValueError, TypeError, NotImplementedError):
                # The code below converts the arguments one by one, so its error names the parameter at fault.
                pass
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadMismatch(self._describe_misfit(args, str(error))) from error
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._convert_parameter(name, value)
        return bound.args, bound.kwargs

    def _describe_misfit(self, args: Args, reason: str) -> str:
        """Return the error of a payload to which no call corresponds; `reason` is that of Signature.bind."""
        name, most = self.function.__name__, len(self.positional_names)
        if len(args) > most and reason == "too many positional arguments":
            reason = f"argument {most + 1} has no parameter"
        known = [one.replace(annotation=one.empty) for one in self._signature.parameters.values()]
        return f"the payload does not fit {name}: {reason}; it is {name}({', '.join(map(str, known))}) here"

    def _convert_together(self, args: Args) -> Args:
        """Return positional arguments, converted by one call.

        A worker does this for every job; binding with inspect.Signature took a quarter of the worker's CPU.
        """
        wanted = self._positional_types[len(args)]
        converted: Args = msgspec.convert(args, wanted, dec_hook=dec_hook, str_keys=True)
        return converted if (used := self._used_converters) is None else used.load_positional(converted)

    @cached_property
    def _positional_payload(self) -> Any:
        """Struct of a payload with positional arguments only; None if their number may vary.

        Decoding to this type takes a third of the time of decoding to any type and converting. It is a
        Struct, because msgspec caches its type information only for Structs.
        """
        if len(self._positional_types) != 1:
            return None
        (wanted,) = self._positional_types.values()
        return msgspec.defstruct(
            "ByPosition",
            [("args", wanted), ("kwargs", EmptyKwargs)],
            forbid_unknown_fields=True,
            frozen=True,
        )

    @cached_property
    def _positional_types(self) -> dict[int, GenericAlias]:
        """The tuple type of positional arguments for each number of arguments that a call may have.

        `def f(a: int, b: str = "")` has {1: tuple[int], 2: tuple[int, str]}. It is empty if a keyword-only
        parameter has no default.
        """
        known = self._signature.parameters.values()
        if any(one.kind is inspect.Parameter.KEYWORD_ONLY and one.default is one.empty for one in known):
            return {}
        names = self.positional_names
        needed = sum(self._signature.parameters[name].default is inspect.Parameter.empty for name in names)
        # msgspec leaves values of the type `object` as they are, and the converter gets them.
        hints = tuple(object if name in self.converters else self.hints.get(name, Any) for name in names)
        return {count: GenericAlias(tuple, hints[:count]) for count in range(needed, len(names) + 1)}

    def convert_argument(self, name: str, value: Any) -> Any:
        """Return a decoded value, converted to the type hint of a parameter. Raises PayloadMismatch."""
        try:
            if name in self.converters:
                return self.converters.load(name, value)
            return msgspec.convert(value, self.hints.get(name, Any), dec_hook=dec_hook, str_keys=True)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise PayloadMismatch(f"argument {name!r} of {self.function.__name__}: {error}") from error

    def needs_no_conversion(self, name: str, value: Any) -> bool:
        """Return whether a worker surely decodes the value to the type hint of the parameter.

        If it returns False, only encoding and decoding the value shows whether it fits.
        """
        return _has_plain_hint(self.hints.get(name, Any), value)

    def _argument_needs_no_conversion(self, name: str, value: Any) -> bool:
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return all(self.needs_no_conversion(name, item) for item in value)
        if kind is inspect.Parameter.VAR_KEYWORD:
            return all(self.needs_no_conversion(name, item) for item in value.values())
        return self.needs_no_conversion(name, value)

    def _convert_parameter(self, name: str, value: Any) -> Any:
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(self.convert_argument(name, item) for item in value)
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: self.convert_argument(name, item) for key, item in value.items()}
        return self.convert_argument(name, value)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The type hints of parameters and return value.

        They are read at the first use, because they may name classes that are defined below the function.
        """
        try:
            return get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise self._unknown_name(error) from error

    @cached_property
    def converters(self) -> ArgumentConverters:
        """The converters of the parameters. Reading it raises BadHandler if a hint names an unknown class."""
        hints = self.hints
        try:
            return ArgumentConverters(self.function, self._signature, hints)
        except NameError as error:
            raise self._unknown_name(error) from error

    @cached_property
    def _used_converters(self) -> ArgumentConverters | None:
        """The converters, or None if no parameter needs one: this test takes no call of a method."""
        return self.converters or None

    def _unknown_name(self, error: NameError) -> BadHandler:
        return BadHandler(
            f"{self.function.__name__}: the type hint {error.name!r} does not exist at run time; "
            "import it outside `if TYPE_CHECKING`"
        )

    @property
    def hints_are_known(self) -> bool:
        """True if all classes in the type hints exist; a class may be defined below the function."""
        try:
            return self.converters is not None
        except AttributeError:  # a module that is imported only in part, in a circle of imports
            return False
        except BadHandler:
            return False

    def needs_converter(self, name: str) -> bool:
        """Return whether the values of a parameter, or the result ("return"), may need a converter."""
        if not self.hints_are_known:
            return True
        return self._return_converter is not None if name == "return" else name in self.converters

    @property
    def return_type(self) -> Any:
        """The type hint of the return value, or Any without a hint."""
        return self.hints.get("return", Any)

    @cached_property
    def _return_converter(self) -> Converter | None:
        """The converter of results; None if they need none, or if their type has none."""
        try:
            return build_converter(self.return_type)
        except UnsupportedHintError:
            return None

    def check_result(self, serde: Serde) -> None:
        """Raise BadHandler for a return type whose values a serde of dibs cannot store."""
        if self.return_type in (NoReturn, Never) or not isinstance(
            data_format(serde), JsonSerde | MessagePackSerde
        ):
            return
        try:
            build_converter(self.return_type)
        except UnsupportedHintError as error:
            raise BadHandler(
                f"{self.function.__name__}: its return type cannot be stored. {error}. Return another type, "
                "or None; with the return type `object`, the job completes and keeps a text about the value"
            ) from None

    def dump_argument(self, name: str, value: Any) -> Any:
        """Return the value of a parameter as data that a serde encodes."""
        return self.converters.dump(name, value)

    def dump_result(self, value: Any) -> Any:
        """Return a result of the function as data that a serde encodes."""
        return value if self._return_converter is None else self._return_converter.dump(value)

    def decode_result(self, serde: Serde, raw: bytes) -> Any:
        """Return a decoded result, converted to the type hint of the return value. Raises ValueError."""
        if self._return_converter is None:
            return serde.decode(raw, self.return_type)
        try:
            return self._return_converter.load(serde.decode(raw))
        except TypeError as error:
            raise ValueError(str(error)) from None

    @property
    def positional_names(self) -> list[str]:
        """The names of the parameters that a call may pass by position; *args is not among them."""
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, one in self._signature.parameters.items() if one.kind in by_position]


def _has_plain_hint(hint: Any, value: Any) -> bool:
    if hint is Any:
        return not may_change_untyped(value)
    return hint in _PLAIN_TYPES and type(value) is hint


def _refused_call(message: str, reason: str) -> Refused:
    """Return the error of a bad call. The first quoted name in `reason` is the parameter at fault."""
    named = _QUOTED_NAME.search(reason)
    return Refused(message, field=named[1] if named else "")
