"""Values to stored bytes and back. Stored bytes never choose what is imported or called."""

from __future__ import annotations

import sys
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from dibs.errors import Refused
from dibs.model.check_values import check_value
from dibs.model.limits import LIMITS


@runtime_checkable
class Serde(Protocol):
    """How a queue writes its payloads and results: a name for people, and two functions."""

    @property
    def name(self) -> str:
        """What people call the format."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return the value as bytes. Raises Refused for what the format cannot say."""
        ...

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        """Return the value as `type`, always the caller's own. Raises ValueError if it is no such value."""
        ...


class JsonSerde:
    """JSON, with a place for dataclasses, attrs, Structs, datetime, UUID, Decimal, Enum, Path and bytes.

    Models of Pydantic are written by alias, as their own JSON, and validated when they are read. NaN,
    infinity, lone surrogates, NUL and nesting deeper than 64 are refused (contract 4, Limits).
    """

    name: Final = "json"

    def encode(self, value: Any) -> bytes:
        if value is None:  # what most handlers return
            return b"null"
        try:
            raw = _as_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise _unsayable("JSON", error) from error
        if needs_value_check(raw):
            _check(value)
        return raw

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return msgspec.json.decode(raw, type=type, dec_hook=dec_hook)


class MessagePackSerde:
    """MessagePack: smaller, and bytes stay bytes. It refuses what JsonSerde refuses."""

    name: Final = "messagepack"

    def encode(self, value: Any) -> bytes:
        try:
            raw = msgspec.msgpack.encode(value, enc_hook=enc_hook)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _unsayable("MessagePack", error) from error
        _check(value)
        return raw

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return msgspec.msgpack.decode(raw, type=type, dec_hook=dec_hook)


_U: Final = ord("u")


def needs_value_check(raw: bytes) -> bool:
    """Tell whether encoded JSON may hide what is refused; walking every value would cost more than encoding.

    The encoder writes NaN and infinity as null and NUL as an escape, and depth needs as many brackets.
    """
    # Both have a "u", and to look for one byte as a number takes a tenth of looking for text.
    if _U in raw and (b"null" in raw or b"\\u0000" in raw):
        return True
    return len(raw) > LIMITS.depth and raw.count(b"{") + raw.count(b"[") > LIMITS.depth


def enc_hook(value: Any) -> Any:
    """Return a value that msgspec does not know as one it does."""
    if isinstance(value, _paths()):
        return str(value)
    if isinstance(value, _models()):
        # Its JSON form, whatever the serde: what one form can say, the other can.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"a value of type {type(value).__qualname__} has no form there; send plain data instead")


def dec_hook(kind: Any, value: Any) -> Any:
    """Return a decoded value as a type that msgspec does not know, if `enc_hook` can write it."""
    if kind is object:
        return value
    if issubclass(kind, _paths()) and isinstance(value, str):
        return kind(value)
    if issubclass(kind, _models()):
        # As JSON: a strict model takes a date from its text there, and nowhere else.
        return kind.model_validate_json(msgspec.json.encode(value))
    raise NotImplementedError(f"nothing is known of the type {kind!r}")


def _paths() -> Any:
    """Return what all paths descend from; nothing, as long as nobody imported it."""
    return getattr(sys.modules.get("pathlib"), "PurePath", ())


def _models() -> Any:
    """Return what all models of Pydantic descend from; nothing, as long as nobody imported it."""
    return getattr(sys.modules.get("pydantic"), "BaseModel", ())


_as_json: Final = msgspec.json.Encoder(enc_hook=enc_hook).encode


def _check(value: Any) -> None:
    check_value("data", msgspec.to_builtins(value, enc_hook=enc_hook))


def _unsayable(form: str, error: Exception) -> Refused:
    return Refused(f"data cannot be written as {form}: {error}", field="data")


#: What every queue uses unless it was told otherwise.
JSON: Final = JsonSerde()
