"""Serialization of payloads and results. Stored bytes never choose what Python imports or calls."""

from __future__ import annotations

import sys
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from dibs.errors import Refused
from dibs.model.check_values import check_json_value
from dibs.model.limits import LIMITS
from dibs.model.plain_values import to_plain


@runtime_checkable
class Serde(Protocol):
    """The interface of a serialization format. `app.queue(name, serde=...)` sets the format of a queue."""

    @property
    def name(self) -> str:
        """The name of the format, for messages."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return `value` as bytes. Raises Refused if the format cannot represent it."""
        ...

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        """Return the decoded value, converted to `type`. Raises ValueError if `raw` holds no such value.

        The caller chooses `type`; `raw` has no influence on it.
        """
        ...


class JsonSerde:
    """JSON, extended by dataclasses, attrs classes, Structs, datetime, UUID, Decimal, Enum, Path and bytes.

    Pydantic models are encoded by alias, as Pydantic's own JSON, and validated on decoding. `encode` refuses
    NaN, infinity, lone surrogates, NUL in text, and nesting deeper than 64 levels (contract 4, Limits).
    """

    name: str = "json"

    def encode(self, value: Any) -> bytes:
        if value is None:  # the result of most handlers
            return b"null"
        try:
            raw = _encode_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise _encoding_error("JSON", error) from error
        if needs_value_check(raw):
            _check_data(value)
        return raw

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return msgspec.json.decode(raw, type=type, dec_hook=dec_hook)


class MessagePackSerde:
    """MessagePack: smaller than JSON, and bytes stay bytes. It refuses the values that JsonSerde refuses."""

    name: str = "messagepack"

    def encode(self, value: Any) -> bytes:
        try:
            raw = msgspec.msgpack.encode(value, enc_hook=enc_hook)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _encoding_error("MessagePack", error) from error
        _check_data(value)
        return raw

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return msgspec.msgpack.decode(raw, type=type, dec_hook=dec_hook)


_LETTER_U: Final = ord("u")


def needs_value_check(raw: bytes) -> bool:
    """Return whether encoded JSON may hide a refused value, so that the value itself must be checked.

    Checking every value would cost more than encoding it. The encoder writes NaN and infinity as `null` and
    NUL as an escape, and nesting deeper than the limit needs more opening brackets than the limit.
    """
    # "null" and the escape both contain a "u". A search for one byte as an int takes a tenth of the time that
    # a search for text takes.
    if _LETTER_U in raw and (b"null" in raw or b"\\u0000" in raw):
        return True
    return len(raw) > LIMITS.depth and raw.count(b"{") + raw.count(b"[") > LIMITS.depth


def enc_hook(value: Any) -> Any:
    """Return a path as text, a Pydantic model as builtins, and a subclass of str or a number as that type.

    For msgspec. Raises TypeError for any other type.
    """
    if isinstance(value, _path_type()):
        return str(value)
    if isinstance(value, _model_type()):
        # The JSON form for every serde, so that a model that JSON can encode is accepted by MessagePack too.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    return to_plain(value)


def dec_hook(kind: Any, value: Any) -> Any:
    """Return a decoded `value` as the path type or Pydantic model `kind`, for msgspec."""
    if kind is object:
        return value
    if issubclass(kind, _path_type()) and isinstance(value, str):
        return kind(value)
    if issubclass(kind, _model_type()):
        # Validated as JSON, because a strict model accepts a date as text only from JSON.
        return kind.model_validate_json(msgspec.json.encode(value))
    raise NotImplementedError(f"dibs cannot decode the type {kind!r}")


def _path_type() -> Any:
    """Return PurePath, or () if pathlib is not imported: then no value can be a path."""
    return getattr(sys.modules.get("pathlib"), "PurePath", ())


def _model_type() -> Any:
    """Return pydantic.BaseModel, or () if pydantic is not imported: then no value can be a model."""
    return getattr(sys.modules.get("pydantic"), "BaseModel", ())


_encode_json: Final = msgspec.json.Encoder(enc_hook=enc_hook).encode


def _check_data(value: Any) -> None:
    check_json_value("data", msgspec.to_builtins(value, enc_hook=enc_hook))


def _encoding_error(form: str, error: Exception) -> Refused:
    return Refused(f"data cannot be encoded as {form}: {error}", field="data")


#: The serde of queues that are declared without `serde=`.
JSON: Final = JsonSerde()
