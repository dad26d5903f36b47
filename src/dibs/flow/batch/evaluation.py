"""The evaluation of a batch: count ended segments, enqueue the callbacks, end the batch.

An evaluation may stop at any point, by a crash or an error, and the next one goes on from the stored notes.
It decides by one read of the batch job: if that read shows the batch closed, it shows all valid reservations.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

import msgspec
from attrs import define, field

from dibs.client.calls.current_job import current_job
from dibs.client.options.durations import epoch_ms
from dibs.errors import NotRunning, Snooze
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
from dibs.flow.batch.plan import CLOSED_ATTRIBUTE, LOST_ATTRIBUTE, ON_FIRST_FAILURE
from dibs.flow.batch.segments import build_empty_segment
from dibs.flow.context import FlowContext
from dibs.flow.wakeup import FLOWS
from dibs.model.job import Error, Job
from dibs.model.requests import Fail, JobPatch
from dibs.storage.protocol import Storage

#: The most segments of one read: each has up to 512 KiB.
MAX_READ: Final = 16
#: The factor from one read to the next one, after a read in which all segments had ended.
_GROWTH: Final = 4
#: The most open segments that are read for the progress.
MAX_PROGRESS_READ: Final = 64
#: Ms after the close of a batch from which a missing segment counts as missing.
GRACE: Final = 60_000
#: The shortest and the longest time until the next evaluation, in seconds. It doubles while nothing changes.
_TIMERS: Final = (2.0, 60.0)
_SHORTEST: Final = 0.02
#: The most batches whose timers a process remembers.
_MAX_TIMERS: Final = 1000


@define(eq=False)
class BatchEvaluator:
    """Evaluates the batches of an app in one process."""

    _context: FlowContext
    #: The seconds until the next evaluation, by the id of the batch.
    _timers: OrderedDict[str, float] = field(factory=OrderedDict, init=False)

    async def evaluate(self, storage: Storage, job: Job) -> None:
        """Evaluate the batch of a handed-off job. Return after the end of the batch, else raise Snooze."""
        try:
            batch = decode_live_batch(job)
        except ValueError as error:
            reason = Error(type="BadPlan", message=f"the batch cannot be read: {error}", kind="permanent")
            await storage.finish(FLOWS, job.id, Fail(error=reason), job.revision)
            return
        now = _now()
        self._note_times(batch, now)
        if batch.is_cancelled:
            await cancel_segments(storage, batch)
        is_held = await self._count_ended(storage, batch, now)
        ended = await self._note_failure(storage, batch)
        if batch.is_over:
            await end_batch(self._context, storage, batch)
            self._timers.pop(batch.id, None)
            return
        await self._close_if_lost(storage, batch, now)
        changed = await _save(storage, job, batch, ended)
        raise Snooze(delay=self._next_timer(batch, now, changed=changed, is_held=is_held))

    # -- time ----------------------------------------------------------------------------------------

    def _note_times(self, batch: LiveBatch, now: int) -> None:
        memo, total = batch.memo, sum(reserved.segments for reserved in batch.reserved.values())
        if total != memo.reserved or not memo.reserved_at:
            memo.reserved, memo.reserved_at = total, now
        if (batch.is_closed or batch.is_cancelled) and not memo.closed_at:
            memo.closed_at = now

    async def _close_if_lost(self, storage: Storage, batch: LiveBatch, now: int) -> None:
        """Close an open batch to which no producer has added a segment for `open_for`, and read it again."""
        if batch.is_closed or now < batch.memo.reserved_at + batch.plan.open_for:
            return
        patch = JobPatch(attributes={CLOSED_ATTRIBUTE: b"true", LOST_ATTRIBUTE: b"true"})
        await storage.amend(FLOWS, batch.id, patch)
        raise Snooze(delay=_SHORTEST)

    def _next_timer(self, batch: LiveBatch, now: int, *, changed: bool, is_held: bool) -> float:
        """Return the seconds until the next evaluation: by the timer, or at the next deadline."""
        timer = _TIMERS[0] if changed else min(2 * self._timers.pop(batch.id, _TIMERS[0]), _TIMERS[1])
        self._timers[batch.id] = timer
        if len(self._timers) > _MAX_TIMERS:
            self._timers.popitem(last=False)
        if not batch.is_closed:
            timer = min(timer, (batch.memo.reserved_at + batch.plan.open_for - now) / 1000)
        elif is_held:
            timer = min(timer, (batch.memo.closed_at + GRACE - now) / 1000)
        return max(timer, _SHORTEST)

    # -- segments ------------------------------------------------------------------------------------

    async def _count_ended(self, storage: Storage, batch: LiveBatch, now: int) -> bool:
        """Count the segments that have ended, up to the first open one. Return whether that one is missing.

        Only the first open segment is read, and the ones after it once it has ended, so that all evaluations
        of a batch together read each segment a few times.
        """
        size = 1
        while segments := batch.uncounted(size):
            slots = await storage.get(FLOWS, [batch.segment_id(segment) for segment in segments])
            for segment, slot in zip(segments, slots, strict=True):
                if is_missing(slot):
                    await self._replace_missing(storage, batch, segment, now)
                    return True
                if (counts := ended_counts(slot)) is None:
                    return False
                batch.count(segment, counts)
            size = min(size * _GROWTH, MAX_READ)
        return False

    async def _replace_missing(self, storage: Storage, batch: LiveBatch, segment: Segment, now: int) -> None:
        """After the grace period, enqueue an empty segment in the place of a missing one."""
        if batch.memo.closed_at and now >= batch.memo.closed_at + GRACE:
            request = build_empty_segment(batch.segment_id(segment), batch.id)
            await storage.enqueue(FLOWS, [request])

    async def _note_failure(self, storage: Storage, batch: LiveBatch) -> Counts:
        """Enqueue `on_first_failure` after the first failure. Return the counts of open segments."""
        ended = await _read_progress(storage, batch)
        summary = batch.summary(ended)
        if summary.has_failure and not batch.memo.has_failed:
            await enqueue_callback(self._context, batch, ON_FIRST_FAILURE, summary)
            batch.memo.has_failed = True
        return ended


async def _read_progress(storage: Storage, batch: LiveBatch) -> Counts:
    """Return the counts of the first open segments."""
    total, segments = Counts(), batch.uncounted(MAX_PROGRESS_READ)
    for begin in range(0, len(segments), MAX_READ):
        ids = [batch.segment_id(segment) for segment in segments[begin : begin + MAX_READ]]
        for slot in await storage.get(FLOWS, ids):
            total += ended_counts(slot) or open_counts(slot)
    return total


async def _save(storage: Storage, job: Job, batch: LiveBatch, ended: Counts) -> bool:
    """Store the notes and the progress, if they changed. Return whether they did."""
    memo = encode_batch_memo(batch.memo)
    progress = msgspec.json.encode(batch.summary(ended))
    if memo == job.data.memo and job.run is not None and progress == job.run.progress:
        return False
    await storage.report(FLOWS, batch.id, batch.fence, progress=progress, memo=memo)
    return True


def _now() -> int:
    """Return the time at which this evaluation was due, by the clock of the storage, in ms.

    It is never later than now, so a deadline is never early.
    """
    try:
        return epoch_ms("run_at", current_job().run_at)
    except NotRunning:
        return time.time_ns() // 1_000_000
