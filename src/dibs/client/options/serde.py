"""Serialization of payloads and results. Stored bytes never choose what Python imports or calls."""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from dibs.client.options.value_hooks import dec_hook, enc_hook
from dibs.errors import Refused
from dibs.model.check_values import check_json_value
from dibs.model.limits import LIMITS


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

    Pydantic models are encoded by alias, with the values of secrets, and validated on decoding. `encode`
    refuses NaN, infinity, lone surrogates, NUL in text, and nesting deeper than 64 levels (contract 4,
    Limits).
    """

    name: str = "json"

    def encode(self, value: Any) -> bytes:
        if value is None:  # the result of most handlers
            return b"null"
        try:
            raw = _encode_json(value)
            if needs_value_check(raw):
                _check_data(value)
        except Refused:  # a ValueError
            raise
        except (TypeError, ValueError, RecursionError) as error:
            raise _encoding_error("JSON", error) from error
        return raw

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return msgspec.json.decode(raw, type=type, dec_hook=dec_hook)


class MessagePackSerde:
    """MessagePack: smaller than JSON, and bytes stay bytes. It refuses the values that JsonSerde refuses."""

    name: str = "messagepack"

    def encode(self, value: Any) -> bytes:
        try:
            raw = msgspec.msgpack.encode(value, enc_hook=enc_hook)
            _check_data(value)
        except Refused:  # a ValueError
            raise
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _encoding_error("MessagePack", error) from error
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


_encode_json: Final = msgspec.json.Encoder(enc_hook=enc_hook).encode


def _check_data(value: Any) -> None:
    check_json_value("data", msgspec.to_builtins(value, enc_hook=enc_hook))


def _encoding_error(form: str, error: Exception) -> Refused:
    return Refused(f"data cannot be encoded as {form}: {error}", field="data")


#: The serde of queues that are declared without `serde=`.
JSON: Final = JsonSerde()
