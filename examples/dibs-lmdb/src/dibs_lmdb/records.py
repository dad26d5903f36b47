"""The values of the tree, which msgspec packs."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dibs.errors import StorageDamaged
from dibs.model.events import LogEvent
from dibs.model.job import EMPTY, Slot
from dibs.model.plain_values import to_plain
from dibs.model.requests import Settings
from dibs.model.results import EnqueueResult

Record = TypeVar("Record")

FORMAT = 1


class Meta(msgspec.Struct, array_like=True):
    """The clock and the counter of the storage."""

    format: int = FORMAT
    highest: int = 0
    lead: int = 0
    drawn: int = 0
    inode: int = 0
    """The inode of the file that drew the latest numbers. A copy of the file has another one."""
    ahead: int = 0
    """us by which the numbers are ahead of the time; raised in a copy."""


class QueueRecord(msgspec.Struct, array_like=True):
    """A queue, its counts and the numbers of its latest changes."""

    name: str
    settings: Settings = Settings()
    states: dict[str, int] = {}
    under_leases: int = 0
    work: int = 0
    """The number of the latest change that may let a claim find more."""
    gone: int = 0
    """The number of the latest end that left no trace of its id."""
    logged: str = ""
    """The offset of the latest event."""
    logged_number: int = 0
    trimmed: str = ""
    """The offset of the latest event that `prune` removed."""
    log_bytes: int = 0
    reported: int = 0
    """The number of the latest report of progress."""


class IdRecord(msgspec.Struct, array_like=True):
    id: str
    slot: Slot = EMPTY
    ended: int = 0
    """The number of the latest end or cancellation of the id."""
    reported: int = 0
    """The number of the latest report of progress by a run of the id."""


class LeaseRecord(msgspec.Struct, array_like=True):
    holder: str
    expires: int
    dropped: bool = False

    def is_alive(self, now: int) -> bool:
        return not self.dropped and now < self.expires


class TurnRecord(msgspec.Struct, array_like=True):
    """The turn of a key with waiting jobs, or of the jobs without a key."""

    place: int
    starts: int = 0
    """The number of starts since the turn began."""
    waiting: int = 0


class RequestRecord(msgspec.Struct, array_like=True):
    expires: int
    result: EnqueueResult


class LogEntry(msgspec.Struct, array_like=True):
    """The events of one step."""

    at: int
    events: list[LogEvent]


pack = msgspec.msgpack.Encoder(enc_hook=to_plain).encode

_decoders: dict[type, msgspec.msgpack.Decoder[object]] = {}


def unpack(kind: type[Record], packed: bytes, what: str) -> Record:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(packed)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageDamaged(f"{what} cannot be read: {error}; restore the storage from a backup") from error
