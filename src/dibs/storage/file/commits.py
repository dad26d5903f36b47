"""What a commit says: for each queue, what is now where something else was.

It holds what was decided, not what was asked: replaying it takes no decision, so a newer version with a
mended transition reads old commits as they were meant. A payload that only moved, from waiting to active
or from successor to current, is named and not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.model.job import EMPTY, Data, Job, Outcome, Slot, Successor
from dibs.model.requests import Settings
from dibs.storage.indexed.changes import Changes
from dibs.storage.indexed.event_log import Entry
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import Key, Lease

#: Slots in one frame of a checkpoint.
CHUNK: Final = 5_000

#: Where the data of a part comes from: it is written in full, or it is that of a part that was there.
WRITTEN: Final = 0
OF_CURRENT: Final = 1
OF_SUCCESSOR: Final = 2
OF_OUTCOME: Final = 3
_ELSEWHERE: Final = Data()


class SlotImage(Struct, frozen=True, gc=False, array_like=True):
    """A slot as it is now; None when the id is gone."""

    id: str
    slot: Slot | None
    #: Where the data of current, successor and outcome comes from.
    sources: tuple[int, int, int] = (WRITTEN, WRITTEN, WRITTEN)


class QueueImage(Struct, frozen=True, gc=False, array_like=True):
    """What changed in one queue."""

    name: str
    slots: list[SlotImage] = []
    leases: list[tuple[str, Lease | None]] = []
    keys: list[tuple[str, Key | None]] = []
    settings: Settings | None = None
    entries: list[Entry] = []
    trimmed: int = 0


class Commit(Struct, frozen=True, gc=False, array_like=True):
    """One atomic step. `now` and `number` are the clock and the last number drawn after it."""

    now: int
    number: int
    queues: list[QueueImage]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Commit).decode


def encode(index: Index, step: Step) -> bytes:
    """Return a step as the body of a commit."""
    return _encode(Commit(index.now, index.number, [_image(queue, changes) for queue, changes in step]))


def _image(queue: QueueIndex, changes: Changes) -> QueueImage:
    slots = queue.slots
    return QueueImage(
        queue.name,
        [_thin(id, before, slots.get(id, EMPTY)) for id, before in changes.slots.items()],
        [(lease, queue.leases.get(lease)) for lease in changes.leases],
        [(key, queue.keys.get(key)) for key in changes.keys],
        queue.settings if changes.settings is not None else None,
        changes.entries,
        queue.log.trimmed if changes.trimmed is not None else 0,
    )


def _thin(id: str, before: Slot, after: Slot) -> SlotImage:
    """Return the image of a slot without the data that was there before."""
    if after is EMPTY:
        return SlotImage(id, None)
    if before is EMPTY or _bare(after):
        return SlotImage(id, after)
    known = [_data(before.current), _data(before.successor), _data(before.outcome)]
    sources = (
        _source(known, _data(after.current)),
        _source(known, _data(after.successor)),
        _source(known, _data(after.outcome)),
    )
    if sources == (WRITTEN, WRITTEN, WRITTEN):
        return SlotImage(id, after)
    return SlotImage(id, _with_data(after, sources, (_ELSEWHERE, _ELSEWHERE, _ELSEWHERE)), sources)


def _bare(slot: Slot) -> bool:
    """Tell whether no part carries data, as after most ends: then there is nothing to compare."""
    if slot.current is not None or slot.successor is not None:
        return False
    return slot.outcome is None or slot.outcome.data is None


def _data(part: Job | Successor | Outcome | None) -> Data | None:
    return None if part is None else part.data


def _source(known: list[Data | None], data: Data | None) -> int:
    if data is not None:
        for place, one in enumerate(known, OF_CURRENT):
            if one is data:
                return place
    return WRITTEN


def _with_data(slot: Slot, sources: tuple[int, int, int], datas: tuple[Data, Data, Data]) -> Slot:
    """Return a slot in which each part that does not carry its own data has the one given for it."""
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    if sources[0] and current is not None:
        current = replace(current, data=datas[0])
    if sources[1] and successor is not None:
        successor = replace(successor, data=datas[1])
    if sources[2] and outcome is not None:
        outcome = replace(outcome, data=datas[2])
    return Slot(current, successor, outcome, slot.dropped)


def apply(index: Index, body: bytes) -> None:
    """Let the index be as it was where the commit was made. Raises msgspec.DecodeError."""
    commit = _decode(body)
    index.now = max(index.now, commit.now)
    index.number = max(index.number, commit.number)
    for image in commit.queues:
        _apply_queue(index.queue(image.name), image)


def _apply_queue(queue: QueueIndex, image: QueueImage) -> None:
    for one in image.slots:
        queue.put(one.id, EMPTY if one.slot is None else _thick(queue, one.id, one.slot, one.sources))
    for lease, held in image.leases:
        queue.put_lease(lease, held)
    for key, known in image.keys:
        queue.put_key(key, known)
    if image.settings is not None:
        queue.put_settings(image.settings)
    for entry in image.entries:
        queue.put_entry(entry)
    if image.trimmed:
        queue.put_trim(image.trimmed)


def _thick(queue: QueueIndex, id: str, slot: Slot, sources: tuple[int, int, int]) -> Slot:
    if sources == (WRITTEN, WRITTEN, WRITTEN):
        return slot
    before = queue.slots.get(id, EMPTY)
    known = (
        _ELSEWHERE,
        _data(before.current) or _ELSEWHERE,
        _data(before.successor) or _ELSEWHERE,
        _data(before.outcome) or _ELSEWHERE,
    )
    return _with_data(slot, sources, (known[sources[0]], known[sources[1]], known[sources[2]]))


def whole(index: Index) -> Iterator[bytes]:
    """Yield bodies which, applied in order to an empty index, make this one: what a checkpoint is."""
    yield _encode(Commit(index.now, index.number, []))
    for queue in index.queues.values():
        if queue.used:
            yield from _whole_queue(index, queue)


def _whole_queue(index: Index, queue: QueueIndex) -> Iterator[bytes]:
    yield _body(
        index,
        QueueImage(
            queue.name,
            leases=list(queue.leases.items()),
            keys=list(queue.keys.items()),
            settings=queue.settings,
            entries=queue.log.entries,
            trimmed=queue.log.trimmed,
        ),
    )
    for chunk in _chunks(queue.slots.items()):
        yield _body(index, QueueImage(queue.name, [SlotImage(id, slot) for id, slot in chunk]))


def _body(index: Index, image: QueueImage) -> bytes:
    return _encode(Commit(index.now, index.number, [image]))


def _chunks(items: Iterable[tuple[str, Slot]]) -> Iterator[list[tuple[str, Slot]]]:
    chunk: list[tuple[str, Slot]] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
