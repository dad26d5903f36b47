"""Serdes encode data and results as bytes. Stored bytes never choose what Python imports or calls.

Two of them encrypt or sign the bytes of another serde, with a ring of keys that can be rotated. The keys
stay in private fields without a repr, and no error contains a key or a decrypted value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec
from attrs import define, field

from dibs.client.options.value_hooks import dec_hook, enc_hook
from dibs.errors import ConfigurationError, Refused
from dibs.model.check_values import check_json_value
from dibs.model.limits import LIMITS

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet
    from itsdangerous import Signer


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


#: One key, or several with the newest first.
Keys = str | bytes | Sequence[str | bytes]
#: The fewest bytes of a signing key. HMAC-SHA256 has no use for a key that is easier to guess than this.
SHORTEST_SIGNING_KEY: Final = 16


def _as_ring(keys: Keys) -> list[bytes]:
    """Return the keys as a list of bytes. Raises ConfigurationError without a key or for another type."""
    ring = [keys] if isinstance(keys, str | bytes) else list(keys)
    if not ring:
        raise ConfigurationError("keys is empty; pass at least one key, the newest first")
    for index, key in enumerate(ring):
        if not isinstance(key, str | bytes):
            raise ConfigurationError(f"keys[{index}] is of type {type(key).__name__}; pass str or bytes")
    return [key.encode() if isinstance(key, str) else key for key in ring]


def _open_encryption_ring(keys: Keys) -> MultiFernet:
    try:
        from cryptography.fernet import Fernet, MultiFernet  # noqa: PLC0415 - the package may be missing
    except ImportError:
        raise ConfigurationError(
            "EncryptedSerde needs the package cryptography; install it with pip install 'dibs[crypto]'"
        ) from None

    def open_key(index: int, key: bytes) -> Fernet:
        try:
            return Fernet(key)
        except ValueError:
            raise ConfigurationError(
                f"keys[{index}] is no Fernet key: it must be 32 bytes in URL-safe base64, 44 characters; "
                "EncryptedSerde.new_key() returns such a key"
            ) from None

    return MultiFernet([open_key(index, key) for index, key in enumerate(_as_ring(keys))])


def _open_signing_ring(keys: Keys) -> Signer:
    try:
        from itsdangerous import Signer  # noqa: PLC0415 - the package may be missing
    except ImportError:
        raise ConfigurationError(
            "SignedSerde needs the package itsdangerous; install it with pip install 'dibs[crypto]'"
        ) from None
    import hashlib  # noqa: PLC0415 - hashlib loads OpenSSL, which only this serde needs

    ring = _as_ring(keys)
    for index, key in enumerate(ring):
        if len(key) < SHORTEST_SIGNING_KEY:
            raise ConfigurationError(
                f"keys[{index}] has {len(key)} bytes; a signing key needs at least "
                f"{SHORTEST_SIGNING_KEY}, for example from secrets.token_urlsafe()"
            )
    # itsdangerous signs with the last key of its list.
    return Signer(ring[::-1], salt=b"dibs.serde", digest_method=hashlib.sha256)


@define(eq=False)
class EncryptedSerde:
    """Encrypts the bytes of `serde` with Fernet: AES-128-CBC and HMAC-SHA256, of the package cryptography.

    The first of the `keys` encrypts, and each of them decrypts. So a key is rotated in three deployments:
    add the new key as the last one, make it the first one, and remove the old key when no stored job or
    outcome needs it. Encrypted data takes 4/3 of its size and about 100 bytes more.

    Raises ConfigurationError for a key that is no Fernet key, and without the package cryptography.
    """

    _ring: MultiFernet = field(alias="keys", converter=_open_encryption_ring, repr=False)
    #: The format of the data before its encryption.
    serde: Serde = field(default=JSON, kw_only=True)

    @staticmethod
    def new_key() -> str:
        """Return a new random key. Keep it where the secrets of the application are."""
        from cryptography.fernet import Fernet  # noqa: PLC0415 - the package may be missing

        return Fernet.generate_key().decode()

    @property
    def name(self) -> str:
        return f"encrypted-{self.serde.name}"

    def encode(self, value: Any) -> bytes:
        return self._ring.encrypt(self.serde.encode(value))

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        """Raises ValueError if none of the keys encrypted `raw`, or if it was changed since."""
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 - loaded with the keys

        try:
            plain = self._ring.decrypt(raw)
        except InvalidToken:
            raise ValueError(
                "the data was not encrypted with a key of this EncryptedSerde, or it was changed; pass the "
                "key with which its sender encrypts as one of the keys"
            ) from None
        return self.serde.decode(plain, type)


@define(eq=False)
class SignedSerde:
    """Appends a signature to the bytes of `serde`: HMAC-SHA256 by the package itsdangerous.

    The data stays readable, and a worker refuses data whose sender had none of the keys. The first of the
    `keys` signs, and each of them verifies. A signature takes 44 bytes.

    Raises ConfigurationError for a key of less than 16 bytes, and without the package itsdangerous.
    """

    _ring: Signer = field(alias="keys", converter=_open_signing_ring, repr=False)
    #: The format of the data before its signature.
    serde: Serde = field(default=JSON, kw_only=True)

    @property
    def name(self) -> str:
        return f"signed-{self.serde.name}"

    def encode(self, value: Any) -> bytes:
        return self._ring.sign(self.serde.encode(value))

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        """Raises ValueError if `raw` has no signature by one of the keys."""
        from itsdangerous import BadSignature  # noqa: PLC0415 - loaded with the keys

        try:
            plain = self._ring.unsign(raw)
        except BadSignature:
            raise ValueError(
                "the data has no signature by a key of this SignedSerde, or it was changed; pass the key "
                "with which its sender signs as one of the keys"
            ) from None
        return self.serde.decode(plain, type)


def data_format(serde: Serde) -> Serde:
    """Return the serde that writes the data, which may be inside serdes that encrypt or sign it."""
    while isinstance(serde, EncryptedSerde | SignedSerde):
        serde = serde.serde
    return serde
