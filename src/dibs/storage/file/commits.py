"""The content of a commit file: for each queue, the new values of everything that one step changed.

A commit records results, not requests. So a newer version of dibs, in which the same request may have another
result, still reads an old commit with its original meaning. If a payload only moved, from waiting to active
or from successor to current, the commit refers to the old copy and does not repeat the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.model.job import EMPTY, Job, JobData, Outcome, Slot, Successor
from dibs.model.plain_values import to_plain
from dibs.model.requests import Settings
from dibs.storage.indexed.event_log import Entry
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.output import Output, Position, ReportedChunks, without_oldest
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import Changes, Lease, RequestKey, Turn

T = TypeVar("T")
#: Slots or log entries in one frame of a checkpoint.
ITEMS_PER_FRAME: Final = 5_000
#: Outputs of ids in one frame of a checkpoint. Each may have a MiB.
OUTPUTS_PER_FRAME: Final = 100

#: Sources of the data (payload, attributes ...) of a job in a commit. WRITTEN: the commit has the data.
#: OF_CURRENT and the next two numbers: the current, successor or outcome that the slot had before the step.
WRITTEN: Final = 0
OF_CURRENT: Final = 1
_NO_DATA: Final = JobData()


class SlotImage(Struct, frozen=True, gc=False, array_like=True):
    """The slot of one id (its job, successor and outcome) after the step."""

    id: str
    #: None if the step removed the id.
    slot: Slot | None
    #: Sources of the data of current, successor and outcome (WRITTEN, OF_CURRENT, ...).
    sources: tuple[int, int, int] = (WRITTEN, WRITTEN, WRITTEN)


class OutputImage(Struct, frozen=True, gc=False, array_like=True):
    """What a step changed in the output of one id. The chunks that it had before are not written again."""

    begin: int
    cut: Position
    #: The first chunk that the step left.
    first: Position
    #: The reports that the step added.
    added: list[ReportedChunks]


class QueueImage(Struct, frozen=True, gc=False, array_like=True):
    """The changes of one step in one queue. A lease or request key with None was removed by the step."""

    name: str
    slots: list[SlotImage] = []
    leases: list[tuple[str, Lease | None]] = []
    keys: list[tuple[str, RequestKey | None]] = []
    #: None if the step did not change the settings.
    settings: Settings | None = None
    #: Log entries that the step added.
    entries: list[Entry] = []
    #: Number of the last log entry that the step removed; 0 if it removed none.
    trimmed: int = 0
    #: The ids whose runs reported progress in the step.
    reported: list[str] = []
    #: The clocks of the queue ("") and of keys, in us. A clock with None was removed.
    clocks: list[tuple[str, int | None]] = []
    #: The output of ids. An output with None was removed.
    outputs: list[tuple[str, OutputImage | None]] = []
    #: The turns of keys, and of the jobs without a key (""). A turn with None was removed.
    turns: list[tuple[str, Turn | None]] = []


class Commit(Struct, frozen=True, gc=False, array_like=True):
    """One atomic step, as the body of one commit file."""

    #: The clock after the step, ms since the epoch.
    now: int
    #: The last number that was drawn. All seqs, revisions, fences and log offsets come from one counter.
    number: int
    queues: list[QueueImage]
    #: Ms by which `now` is ahead of the machine's clock.
    lead: int
    #: us by which the numbers are ahead of `now`.
    ahead: int


_encode: Final = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
_decode: Final = msgspec.msgpack.Decoder(Commit).decode


def encode(index: Index, step: Step) -> bytes:
    """Encode a step as the body of a commit. The index must still be in the state after that step."""
    images = [_queue_image(queue, changes) for queue, changes in step]
    return _encode(Commit(index.now, index.number, images, index.lead, index.ahead))


def _queue_image(queue: QueueIndex, changes: Changes) -> QueueImage:
    slots = queue.slots
    return QueueImage(
        queue.name,
        [_without_known_data(id, before, slots.get(id, EMPTY)) for id, before in changes.slots.items()],
        [(lease, queue.leases.get(lease)) for lease in changes.leases],
        [(key, queue.keys.get(key)) for key in changes.keys],
        queue.settings if changes.settings is not None else None,
        changes.entries,
        queue.log.trimmed if changes.trimmed_before is not None else 0,
        changes.reported,
        [(key, queue.clocks.values.get(key)) for key in changes.clocks],
        [(id, _output_image(before, queue.outputs.get(id))) for id, before in changes.outputs.items()],
        [(key, queue.turns.get(key)) for key in changes.turns],
    )


def _output_image(before: Output | None, after: Output | None) -> OutputImage | None:
    if after is None:
        return None
    known = 0 if before is None else before.reports[-1].number
    first = after.reports[0]
    added = [one for one in after.reports if one.number > known]
    return OutputImage(after.begin, after.cut, (first.number, first.removed), added)


def _changed_output(before: Output | None, image: OutputImage | None) -> Output | None:
    if image is None:
        return None
    kept = () if before is None else without_oldest(before.reports, image.first)
    return Output((*kept, *image.added), image.begin, image.cut)


def _without_known_data(id: str, before: Slot, after: Slot) -> SlotImage:
    """Return the image of slot `after`. Data that slot `before` held already is replaced by a reference."""
    if after is EMPTY:
        return SlotImage(id, None)
    if before is EMPTY or _has_no_data(after):
        return SlotImage(id, after)
    known = [_part_data(before.current), _part_data(before.successor), _part_data(before.outcome)]
    sources = (
        _find_source(known, _part_data(after.current)),
        _find_source(known, _part_data(after.successor)),
        _find_source(known, _part_data(after.outcome)),
    )
    if sources == (WRITTEN, WRITTEN, WRITTEN):
        return SlotImage(id, after)
    return SlotImage(id, _with_data(after, sources, (_NO_DATA, _NO_DATA, _NO_DATA)), sources)


def _has_no_data(slot: Slot) -> bool:
    """Return whether a slot has no job data, as after most ends of runs. It saves comparing the data."""
    if slot.current is not None or slot.successor is not None:
        return False
    return slot.outcome is None or slot.outcome.data is None


def _part_data(part: Job | Successor | Outcome | None) -> JobData | None:
    return None if part is None else part.data


def _find_source(known: list[JobData | None], data: JobData | None) -> int:
    if data is not None:
        for source, candidate in enumerate(known, OF_CURRENT):
            if candidate is data:
                return source
    return WRITTEN


def _with_data(slot: Slot, sources: tuple[int, int, int], datas: tuple[JobData, JobData, JobData]) -> Slot:
    """Return the slot with the data from `datas` in each part whose source is not WRITTEN."""
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    if sources[0] and current is not None:
        current = replace(current, data=datas[0])
    if sources[1] and successor is not None:
        successor = replace(successor, data=datas[1])
    if sources[2] and outcome is not None:
        outcome = replace(outcome, data=datas[2])
    return Slot(current, successor, outcome, slot.dropped)


def apply(index: Index, body: bytes) -> None:
    """Apply the commit in `body` to the index. Raise msgspec.DecodeError, with the index unchanged."""
    commit = _decode(body)
    index.now = max(index.now, commit.now)
    index.number = max(index.number, commit.number)
    index.lead = commit.lead
    index.ahead = commit.ahead
    for image in commit.queues:
        _apply_queue(index.queue(image.name), image)


def _apply_queue(queue: QueueIndex, image: QueueImage) -> None:
    # Clocks and turns come first: a slot and the settings open, close and order their keys by them.
    for key, clock in image.clocks:
        queue.put_clock(key, clock)
    for key, turn in image.turns:
        queue.put_turn(key, turn)
    for changed in image.slots:
        slot = changed.slot
        full = EMPTY if slot is None else _with_known_data(queue, changed.id, slot, changed.sources)
        queue.restore(changed.id, _with_known_end(queue, changed.id, full))
    for lease_id, lease in image.leases:
        queue.put_lease(lease_id, lease)
    for request_key, known in image.keys:
        queue.put_key(request_key, known)
    for id, output in image.outputs:
        queue.put_output(id, _changed_output(queue.outputs.get(id), output))
    if image.settings is not None:
        queue.put_settings(image.settings)
    _apply_log(queue, image)


def _apply_log(queue: QueueIndex, image: QueueImage) -> None:
    for entry in image.entries:
        queue.put_entry(entry)
    if image.trimmed:
        queue.put_trim(image.trimmed)
    if image.reported:
        queue.put_reported(image.reported)


def _with_known_data(queue: QueueIndex, id: str, slot: Slot, sources: tuple[int, int, int]) -> Slot:
    if sources == (WRITTEN, WRITTEN, WRITTEN):
        return slot
    before = queue.slots.get(id, EMPTY)
    known = (
        _NO_DATA,
        _part_data(before.current) or _NO_DATA,
        _part_data(before.successor) or _NO_DATA,
        _part_data(before.outcome) or _NO_DATA,
    )
    return _with_data(slot, sources, (known[sources[0]], known[sources[1]], known[sources[2]]))


def _with_known_end(queue: QueueIndex, id: str, slot: Slot) -> Slot:
    """Return the slot with the outcome and dropped ranges that it has in this process, if they are equal.

    A decoded copy would look like a new end of the id, and wake the waits for it.
    """
    before = queue.slots.get(id, EMPTY)
    outcome = before.outcome if slot.outcome == before.outcome else slot.outcome
    dropped = before.dropped if slot.dropped == before.dropped else slot.dropped
    if outcome is slot.outcome and dropped is slot.dropped:
        return slot
    return Slot(slot.current, slot.successor, outcome, dropped)


def snapshot(index: Index) -> Iterator[bytes]:
    """Yield the bodies of a checkpoint's frames. Applied to an empty index in order, they rebuild `index`."""
    yield _encode(Commit(index.now, index.number, [], index.lead, index.ahead))
    for queue in index.queues.values():
        if queue.used:
            yield from _snapshot_queue(index, queue)


def _snapshot_queue(index: Index, queue: QueueIndex) -> Iterator[bytes]:
    yield _encode_queue(
        index,
        QueueImage(
            queue.name,
            leases=list(queue.leases.items()),
            keys=list(queue.keys.items()),
            settings=queue.settings,
            trimmed=queue.log.trimmed,
            clocks=list(queue.clocks.values.items()),
            turns=list(queue.turns.items()),
        ),
    )
    for entries in _chunks(queue.log):
        yield _encode_queue(index, QueueImage(queue.name, entries=entries))
    for outputs in _chunks(queue.outputs.items(), OUTPUTS_PER_FRAME):
        images = [(id, _output_image(None, output)) for id, output in outputs]
        yield _encode_queue(index, QueueImage(queue.name, outputs=images))
    for chunk in _chunks(queue.slots.items()):
        yield _encode_queue(index, QueueImage(queue.name, [SlotImage(id, slot) for id, slot in chunk]))


def _encode_queue(index: Index, image: QueueImage) -> bytes:
    return _encode(Commit(index.now, index.number, [image], index.lead, index.ahead))


def _chunks(items: Iterable[T], size: int = ITEMS_PER_FRAME) -> Iterator[list[T]]:
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
