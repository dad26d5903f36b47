"""The payload of a task's job: its form, the error of a payload that does not fit, and the converters of the
parameters whose type hint needs one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from dibs.client.calls.conversion import Converter, UnsupportedHintError, build_converter
from dibs.client.options.serde import JsonSerde, MessagePackSerde, Serde, data_format
from dibs.errors import BadHandler, PermanentError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class PayloadMismatch(PermanentError):
    """The payload of a job does not fit the handler of this process, so the handler was not called.

    Another worker may have the code that fits, so a worker tries the job again later.
    """


class TaskPayload(msgspec.Struct, forbid_unknown_fields=True):
    """The payload of a task's job: the arguments of one call, in the order of the call and by name."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class EmptyKwargs(msgspec.Struct, forbid_unknown_fields=True):
    """Type of empty keyword arguments. Decoding a payload with keyword arguments to it raises an error."""


def decode_task_payload(serde: Serde, payload: bytes) -> tuple[Args, Kwargs]:
    """Return the arguments of a task's payload without conversion to type hints. Raises PayloadMismatch."""
    try:
        written = serde.decode(payload, TaskPayload)
    except ValueError as error:
        raise PayloadMismatch(
            f'the payload is not of the form {{"args": [...], "kwargs": {{...}}}} of a task: {error}'
        ) from error
    return tuple(written.args), written.kwargs


_BY_KEYWORD: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class ArgumentConverters:
    """The converters of the parameters of a function. `bool()` of it is False if no parameter needs one.

    A serde of an application may know types that dibs does not, so only the serdes of dibs refuse them.
    """

    def __init__(
        self, function: Callable[..., Any], signature: inspect.Signature, hints: Mapping[str, Any]
    ) -> None:
        self._by_name: dict[str, Converter] = {}
        self._refused: dict[str, str] = {}
        known = signature.parameters
        self._by_position = [name for name, one in known.items() if one.kind not in _BY_KEYWORD]
        self._names = frozenset(known)
        self._required = [name for name, one in known.items() if one.default is one.empty]
        self._keyword_rest = next((n for n, one in known.items() if one.kind is one.VAR_KEYWORD), "")
        for name in known:
            try:
                converter = build_converter(hints.get(name, Any))
            except UnsupportedHintError as error:
                self._refused[name] = (
                    f"{function.__name__}: the type of the parameter {name!r} cannot be sent. {error}. "
                    "Use another type, for example a dataclass, or a serde of your own"
                )
                continue
            if converter is not None:
                self._by_name[name] = converter

    def __bool__(self) -> bool:
        return bool(self._by_name or self._refused)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or name in self._refused

    def check(self, serde: Serde, names: Iterable[str]) -> None:
        """Raise BadHandler if a serde of dibs cannot send the values of one of the parameters."""
        if self._refused and isinstance(data_format(serde), JsonSerde | MessagePackSerde):
            for name in names:
                if name in self._refused:
                    raise BadHandler(self._refused[name])

    def check_required(self, serde: Serde) -> None:
        """Raise BadHandler if a serde of dibs cannot send the values of a parameter without a default.

        A parameter with a default need not be sent, so `check` raises the error when a call passes it.
        """
        self.check(serde, self._required)

    def dump_call(self, serde: Serde, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments of a call as data that the serde encodes."""
        last = len(self._by_position) - 1
        positions = [self._by_position[min(index, last)] for index in range(len(args))]
        keywords = {key: key if key in self._names else self._keyword_rest for key in kwargs}
        self.check(serde, (*positions, *keywords.values()))
        named = {key: self.dump(keywords[key], value) for key, value in kwargs.items()}
        return tuple(map(self.dump, positions, args)), named

    def dump(self, name: str, value: Any) -> Any:
        """Return the value of a parameter as data that a serde encodes."""
        return value if (converter := self._by_name.get(name)) is None else converter.dump(value)

    def load(self, name: str, plain: Any) -> Any:
        """Return decoded data as the type of a parameter. Raises ValueError, TypeError."""
        return plain if (converter := self._by_name.get(name)) is None else converter.load(plain)

    def load_positional(self, args: Args) -> Args:
        """Return decoded positional arguments, each as the type of its parameter; there is no *args."""
        return tuple(map(self.load, self._by_position, args))
