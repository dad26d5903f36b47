"""The evaluation of a batch: count ended segments, enqueue the callbacks, end the batch.

An evaluation may stop at any point, by a crash or an error, and the next one goes on from the stored
notes. It ends the batch only after a read that shows the batch sealed, with all valid reservations.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from attrs import define, field
from msgspec import Raw

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.current_job import CURRENT_JOB
from dibs.errors import QueueFull, Refused, Snooze
from dibs.flow.batch.live_batch import (
    LiveBatch,
    Segment,
    decode_live_batch,
    ended_counts,
    is_missing,
    open_counts,
)
from dibs.flow.batch.plan import (
    BATCH_ATTRIBUTE,
    CLOSED_ATTRIBUTE,
    LOST_ATTRIBUTE,
    ON_FINISH,
    ON_FIRST_FAILURE,
    ON_SUCCESS,
    SEALED_ATTRIBUTE,
    SUMMARY_ATTRIBUTE,
    BatchSummary,
    MemberCounts,
    callback_id,
    decode_batch_plan,
    encode_batch_memo,
    find_reservations,
    is_batch,
    segment_id,
)
from dibs.flow.batch.segments import KEPT, build_empty_segment
from dibs.flow.builder import Flow
from dibs.flow.context import FlowContext
from dibs.flow.plan import Plan, PlannedNode
from dibs.flow.running.ending import CANCEL_ATTRIBUTE, NODES_ATTRIBUTE, wake_up
from dibs.flow.running.node_calls import keep_at_least
from dibs.model.job import Error, Job, JobData, NewJob, Outcome
from dibs.model.requests import Cancelled, Complete, EnqueueRequest, Fail, JobPatch, Reject
from dibs.model.rules import STOPPED
from dibs.model.wakeup import FLOWS, Hint
from dibs.storage.protocol import Storage

CALLBACKS: Final = (ON_SUCCESS, ON_FINISH, ON_FIRST_FAILURE)


def plan_callbacks(context: FlowContext, callbacks: Mapping[str, Bound[Any] | None]) -> dict[str, Plan]:
    """Return each callback that is given as a plan with one node. Raises Refused naming the callback."""
    planned: dict[str, Plan] = {}
    for name, job in callbacks.items():
        if job is None:
            continue
        _check_callback(name, job)
        flow = Flow(context, None, None, {})
        try:
            flow.add(job)
        except Refused as error:
            raise Refused(f"{name}: {error}", field=name) from error
        planned[name] = flow.plan()
    return planned


def _check_callback(name: str, job: object) -> None:
    if not isinstance(job, Bound):
        raise Refused(f"{name} is {job!r:.60}; pass task.bind(...)", field=name)
    if job.has_id:
        raise Refused(
            f"{name} has an id; leave it out, because the batch chooses the id so that the callback is "
            "enqueued once",
            field=name,
        )


def build_callback(
    plan: Plan, name: str, batch_id: str, stamp: int, keep: int | None, summary: BatchSummary
) -> EnqueueRequest:
    """Return the request for a callback. Its id is fixed, so a repeat leaves the stored callback as it is."""
    node = plan.nodes[0]
    id = callback_id(batch_id, stamp, name)
    own = {name: bytes(raw) for name, raw in node.attributes.items()}
    batch = {
        BATCH_ATTRIBUTE: msgspec.json.encode(batch_id),
        SUMMARY_ATTRIBUTE: msgspec.json.encode(summary),
    }
    data = JobData(
        payload=_payload(node),
        attributes={**own, **batch},
        priority=node.priority,
        overrides=node.overrides,
        retention=keep_at_least(node.retention, keep),
        key=node.key,
    )
    job = NewJob(id=id, data=data, run_at=node.run_at, delay=node.delay)
    digest = hashlib.blake2b(id.encode(), digest_size=16).hexdigest()
    return EnqueueRequest(job=job, on_conflict=Reject(failed=True), request_key=f"callback/{digest}")


def _payload(node: PlannedNode) -> bytes:
    return bytes(node.data) if isinstance(node.data, Raw) else bytes(node.payload or b"")


async def end_batch(context: FlowContext, storage: Storage, batch: LiveBatch) -> None:
    """Enqueue the callbacks and finish the batch job, whose segments have all ended.

    Each step may be repeated without harm: a callback has a fixed id, and `finish` ends the job once.
    """
    summary = batch.summary()
    names = [ON_FINISH]
    if summary.is_success and not batch.is_cancelled:
        names.insert(0, ON_SUCCESS)
    if summary.has_failure and not batch.memo.has_failed:
        names.insert(0, ON_FIRST_FAILURE)
    refused = [reason for name in names if (reason := await enqueue_callback(context, batch, name, summary))]
    await _limit_retention(storage, batch)
    if batch.is_cancelled:
        await _mark_cancelled(storage, batch.id)
    await storage.finish(FLOWS, batch.id, _find_end(batch, summary, refused), batch.revision)


def _find_end(batch: LiveBatch, summary: BatchSummary, refused: Sequence[str]) -> Complete | Fail | Cancelled:
    if refused:
        message = f"{'; '.join(refused)}; {msgspec.json.encode(summary).decode()}"
        return Fail(error=Error(type="CallbackRefused", message=message, kind="permanent"))
    return Cancelled() if batch.is_cancelled else Complete(result=msgspec.json.encode(summary))


async def enqueue_callback(context: FlowContext, batch: LiveBatch, name: str, summary: BatchSummary) -> str:
    """Enqueue a callback of the batch, if it has this one. Return the reason of a refusal, or "".

    Raise QueueFull if its queue is at its `max_waiting`; the evaluation then repeats.
    """
    plan = batch.plan.callbacks.get(name)
    if plan is None:
        return ""
    request = build_callback(plan, name, batch.id, batch.stamp, batch.plan.keep, summary)
    try:
        [answer] = await context.client(plan.queue_of(0)).enqueue_requests([request])
    except Refused as error:
        return f"the callback {name} was refused: {error}"
    if answer.status in STOPPED:
        raise QueueFull(f"the callback {name} waits for room in {plan.queue_of(0)}", queue=plan.queue_of(0))
    return ""


async def _limit_retention(storage: Storage, batch: LiveBatch) -> None:
    """Set the retention of the segments to `keep`; until here they are kept for ever."""
    keep = batch.plan.keep
    if keep is None:
        return
    retention = msgspec.structs.replace(KEPT, completed=keep, failed=keep, cancelled=keep)
    for producer, reserved in batch.reserved.items():
        for number in range(reserved.segments):
            id = batch.segment_id((producer, number))
            await storage.amend(FLOWS, id, JobPatch(retention=retention))


# -- cancel --------------------------------------------------------------------------------------------------


async def cancel_segments(storage: Storage, batch: LiveBatch) -> None:
    """Cancel the segments that are not counted: their evaluations cancel their members.

    The first call cancels all of them, and later calls the first ones, which may have been enqueued since.
    """
    segments = batch.uncounted(1 if batch.memo.is_cancelled else None)
    await _cancel(storage, [batch.segment_id(segment) for segment in segments])
    batch.memo.is_cancelled = True


async def clean_up_batch(storage: Storage, id: str, outcome: Outcome | None) -> None:
    """Cancel the segments of a batch that was cancelled as a job, without its evaluation."""
    if outcome is None or outcome.kind != "cancelled" or outcome.data is None:
        return
    if not is_batch(outcome.data.attributes) or NODES_ATTRIBUTE in outcome.data.attributes:
        return
    try:
        decode_batch_plan(outcome.data.payload)
        reserved = find_reservations(outcome.data.attributes)
    except ValueError:
        return
    segments: list[Segment] = [(name, n) for name, one in reserved.items() for n in range(one.segments)]
    await _cancel(storage, [segment_id(id, outcome.first, *segment) for segment in segments])
    await _mark_cancelled(storage, id)


async def _mark_cancelled(storage: Storage, id: str) -> None:
    """Note on a batch job that its segments are cancelled, so that no later evaluation cancels them again."""
    await storage.amend(FLOWS, id, JobPatch(attributes={NODES_ATTRIBUTE: b'""'}))


async def _cancel(storage: Storage, ids: Sequence[str]) -> None:
    for id in ids:
        (answer,) = await storage.cancel(FLOWS, [id])
        if answer == "active":
            await storage.amend(FLOWS, id, JobPatch(attributes={CANCEL_ATTRIBUTE: b"true"}))
            await wake_up(storage, id, Hint(token="cancel batch"))  # noqa: S106 - no password


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


async def _read_progress(storage: Storage, batch: LiveBatch) -> MemberCounts:
    """Return the counts of the first open segments, as their evaluations noted them."""
    ids = [batch.segment_id(segment) for segment in batch.uncounted(MAX_READ)]
    slots = await storage.get(FLOWS, ids) if ids else ()
    return sum((ended_counts(slot) or open_counts(slot) for slot in slots), MemberCounts())


async def _save(storage: Storage, job: Job, batch: LiveBatch, progress: bytes | None) -> bool:
    """Store the notes and the progress, if they changed. Return whether they did."""
    memo = encode_batch_memo(batch.memo)
    if job.run is not None and progress == job.run.progress:
        progress = None
    if memo == job.data.memo and progress is None:
        return False
    await storage.report(FLOWS, batch.id, batch.fence, progress=progress, memo=memo)
    return True
