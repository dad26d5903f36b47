"""The evaluation of a batch: count ended segments, enqueue the callbacks, end the batch.

An evaluation may stop at any point, by a crash or an error, and the next one goes on from the stored notes.
It ends the batch only after a read that shows the batch sealed, with all valid reservations.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

import msgspec
from attrs import define, field

from dibs.client.calls.current_job import CURRENT_JOB
from dibs.errors import Snooze
from dibs.flow.batch.ending import cancel_segments, end_batch, enqueue_callback
from dibs.flow.batch.live_batch import (
    LiveBatch,
    Segment,
    decode_live_batch,
    ended_counts,
    is_missing,
    open_counts,
)
from dibs.flow.batch.memo import Counts, encode_batch_memo
from dibs.flow.batch.plan import (
    CLOSED_ATTRIBUTE,
    LOST_ATTRIBUTE,
    ON_FIRST_FAILURE,
    SEALED_ATTRIBUTE,
)
from dibs.flow.batch.segments import build_empty_segment
from dibs.flow.context import FlowContext
from dibs.model.job import Error, Job
from dibs.model.requests import Fail, JobPatch
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage

#: The most segments of one read: each has up to 512 KiB.
MAX_READ: Final = 16
#: The factor from one read to the next one, after a read in which all segments had ended.
_GROWTH: Final = 4
#: Ms after the close of a batch from which a missing segment counts as missing.
GRACE: Final = 60_000
#: The shortest and the longest time until the next evaluation, in seconds. The time doubles as long as an
#: evaluation finds the same state as the one before.
_TIMERS: Final = (2.0, 60.0)
_SHORTEST: Final = 0.02
#: A read of the progress follows at the earliest after this many times the duration of the one before.
_READ_SHARE: Final = 20
#: The most batches whose timers a process remembers.
_MAX_FOLLOWED: Final = 1000


@define(eq=False)
class _Followed:
    """The timers of a batch in this process."""

    #: Seconds until the next evaluation.
    timer: float = _TIMERS[0]
    #: When the progress is read next, by time.monotonic().
    next_read: float = 0.0


@define(eq=False)
class BatchEvaluator:
    """Evaluates the batches of an app in one process."""

    _context: FlowContext
    _followed: OrderedDict[str, _Followed] = field(factory=OrderedDict, init=False)

    async def evaluate(self, storage: Storage, job: Job) -> None:
        """Evaluate the batch of a handed-off job. Return after the end of the batch, else raise Snooze."""
        try:
            batch = decode_live_batch(job)
        except ValueError as error:
            reason = Error(type="BadPlan", message=f"the batch cannot be read: {error}", kind="permanent")
            await storage.finish(FLOWS, job.id, Fail(error=reason), job.revision)
            return
        now = _now()
        _note_times(batch, now)
        if batch.is_cancelled:
            await cancel_segments(storage, batch)
        is_held = await _count_ended(storage, batch, now)
        if await _is_over(storage, batch):
            await end_batch(self._context, storage, batch)
            self._followed.pop(batch.id, None)
            return
        await _close_if_lost(storage, batch, now)
        changed = await self._note(storage, job, batch)
        raise Snooze(delay=self._next_timer(batch, now, changed=changed, is_held=is_held))

    async def _note(self, storage: Storage, job: Job, batch: LiveBatch) -> bool:
        """Enqueue `on_first_failure` after the first failure, and store the notes and the progress.

        Return whether they changed.
        """
        followed = self._follow(batch.id)
        is_first_failure = batch.has_failed and not batch.memo.has_failed
        progress = None
        if is_first_failure or time.monotonic() >= followed.next_read:
            began = time.monotonic()
            summary = batch.summary(await _read_progress(storage, batch))
            followed.next_read = time.monotonic() + max(_TIMERS[0], _READ_SHARE * (time.monotonic() - began))
            progress = msgspec.json.encode(summary)
            if is_first_failure:
                refusal = await enqueue_callback(self._context, batch, ON_FIRST_FAILURE, summary)
                batch.memo.has_failed = not refusal
        return await _save(storage, job, batch, progress)

    def _next_timer(self, batch: LiveBatch, now: int, *, changed: bool, is_held: bool) -> float:
        """Return the seconds until the next evaluation: by the timer, or at the next deadline."""
        followed = self._follow(batch.id)
        followed.timer = _TIMERS[0] if changed else min(2 * followed.timer, _TIMERS[1])
        deadline = float("inf")
        if not batch.is_closed:
            deadline = batch.memo.reserved_at + batch.plan.open_for
        elif is_held:
            deadline = batch.memo.closed_at + GRACE
        return max(min(followed.timer, (deadline - now) / 1000), _SHORTEST)

    def _follow(self, id: str) -> _Followed:
        followed = self._followed.setdefault(id, _Followed())
        if len(self._followed) > _MAX_FOLLOWED:
            self._followed.popitem(last=False)
        return followed


# -- time ----------------------------------------------------------------------------------------------------


def _now() -> int:
    """Return the time of the claim of this evaluation, by the clock of the storage, in ms."""
    current = CURRENT_JOB.get(None)
    run = None if current is None else current._job.run  # noqa: SLF001 - the time of its claim has no other name
    return time.time_ns() // 1_000_000 if run is None else run.claimed_at


def _note_times(batch: LiveBatch, now: int) -> None:
    memo, total = batch.memo, sum(reserved.segments for reserved in batch.reserved.values())
    if total != memo.reserved or not memo.reserved_at:
        memo.reserved, memo.reserved_at = total, now
    if batch.is_closed and not memo.closed_at:
        memo.closed_at = now


async def _close_if_lost(storage: Storage, batch: LiveBatch, now: int) -> None:
    """Close an open batch to which no producer has added a segment for `open_for`, and evaluate it again."""
    if batch.is_closed or now < batch.memo.reserved_at + batch.plan.open_for:
        return
    patch = JobPatch(attributes={CLOSED_ATTRIBUTE: b"true", LOST_ATTRIBUTE: b"true"})
    await storage.amend(FLOWS, batch.id, patch)
    raise Snooze(delay=_SHORTEST)


# -- segments ------------------------------------------------------------------------------------------------


async def _count_ended(storage: Storage, batch: LiveBatch, now: int) -> bool:
    """Count the segments that have ended, up to the first open one. Return whether that one is missing.

    Only the first open segment is read, and the ones after it once it has ended, so that all evaluations of a
    batch together read each segment a few times.
    """
    size = 1
    while segments := batch.uncounted(size):
        slots = await storage.get(FLOWS, [batch.segment_id(segment) for segment in segments])
        for segment, slot in zip(segments, slots, strict=True):
            if is_missing(slot):
                await _replace_missing(storage, batch, segment, now)
                return True
            if (counts := ended_counts(slot)) is None:
                return False
            batch.count(segment, counts)
        size = min(size * _GROWTH, MAX_READ)
    return False


async def _replace_missing(storage: Storage, batch: LiveBatch, segment: Segment, now: int) -> None:
    """After the grace period, enqueue an empty segment in the place of a missing one."""
    if batch.memo.closed_at and now >= batch.memo.closed_at + GRACE:
        await storage.enqueue(FLOWS, [build_empty_segment(batch.segment_id(segment), batch.id)])


async def _is_over(storage: Storage, batch: LiveBatch) -> bool:
    """Return whether the batch has ended for sure, and seal it before.

    A member may have added members after the first read of the batch job, and before its own end. The read
    here comes after the ends of all counted members, so it shows what they added. The seal also refuses a
    handler whose lease has expired and which still runs.
    """
    if not batch.is_over() or batch.is_sealed:
        return batch.is_over()
    await _refresh(storage, batch)
    if not batch.is_over():
        return False
    await storage.amend(FLOWS, batch.id, JobPatch(attributes={SEALED_ATTRIBUTE: b"true"}))
    await _refresh(storage, batch)
    return batch.is_over()


async def _refresh(storage: Storage, batch: LiveBatch) -> None:
    (slot,) = await storage.get(FLOWS, [batch.id])
    if slot.current is None or slot.current.revision != batch.revision:
        raise Snooze(delay=_SHORTEST)
    batch.refresh(slot.current)


async def _read_progress(storage: Storage, batch: LiveBatch) -> Counts:
    """Return the counts of the first open segments, as their evaluations noted them."""
    ids = [batch.segment_id(segment) for segment in batch.uncounted(MAX_READ)]
    slots = await storage.get(FLOWS, ids) if ids else ()
    return sum((ended_counts(slot) or open_counts(slot) for slot in slots), Counts())


async def _save(storage: Storage, job: Job, batch: LiveBatch, progress: bytes | None) -> bool:
    """Store the notes and the progress, if they changed. Return whether they did."""
    memo = encode_batch_memo(batch.memo)
    if job.run is not None and progress == job.run.progress:
        progress = None
    if memo == job.data.memo and progress is None:
        return False
    await storage.report(FLOWS, batch.id, batch.fence, progress=progress, memo=memo)
    return True
