"""The end of a batch: its callbacks, the retention of its segments, its outcome and its cancellation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dibs.errors import Refused
from dibs.flow.batch.callbacks import build_callback
from dibs.flow.batch.live_batch import LiveBatch, Segment
from dibs.flow.batch.plan import (
    ON_FINISH,
    ON_FIRST_FAILURE,
    ON_SUCCESS,
    decode_batch_plan,
    find_reservations,
    is_batch,
    segment_id,
)
from dibs.flow.batch.segments import KEPT
from dibs.flow.batch.summary import BatchSummary
from dibs.flow.context import FlowContext
from dibs.flow.running.ending import CANCEL_ATTRIBUTE, NODES_ATTRIBUTE, wake_up
from dibs.model.job import Error, Outcome
from dibs.model.requests import Cancelled, Complete, Fail, JobPatch
from dibs.model.wakeup import FLOWS, Hint
from dibs.storage.protocol import Storage


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
    """Enqueue a callback of the batch, if it has this one. Return the reason of a refusal, or ""."""
    plan = batch.plan.callbacks.get(name)
    if plan is None:
        return ""
    request = build_callback(plan, name, batch.id, batch.stamp, batch.plan.keep, summary)
    try:
        await context.client(plan.queue_of(0)).enqueue_requests([request])
    except Refused as error:
        return f"the callback {name} was refused: {error}"
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
