"""The evaluation of a flow: read nodes, enqueue those that are ready, store the notes, end the flow. Its
handlers, and those of flows, are registered by `Dibs(url, flows=True)`.

An evaluation may stop at any point, by a crash or an error, and the next one goes on from the stored
notes: each write of an evaluation may be repeated without harm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from attrs import define, field

from dibs.client.calls.current_job import current_job, flow_worker
from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.client.options.serde import JSON
from dibs.errors import PermanentError, QueueFull, Refused, Snooze
from dibs.flow.batch.evaluation import BatchEvaluator, clean_up_batch
from dibs.flow.batch.plan import is_batch
from dibs.flow.context import FlowContext
from dibs.flow.running.ending import (
    cancel_flow,
    clean_up,
    end_flow,
    is_cancel_requested,
    report_failure,
    restart_nodes,
    save_notes,
)
from dibs.flow.running.live_flow import FlowCache, FlowChanged, LiveFlow, decode_flow, refresh_flow
from dibs.flow.running.node_calls import SharedRequests, apply_ends, apply_slots, enqueue_nodes, read_slots
from dibs.model.job import Error, Job, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Fail, SettingsPatch
from dibs.model.retry import Exponential
from dibs.model.wakeup import EVALUATIONS, FLOWS, Hint, wake_up_request
from dibs.storage.protocol import Storage

#: Seconds until the next evaluation, if no node wakes it.
TIMER: Final = 60.0
#: The shortest and the longest time for a flow with nodes that other enqueues share, because their ends may
#: wake another flow only, and for a storage where the end of a node and its wake-up are not one step. The
#: time doubles while the nodes stay as they are.
SHARED_TIMERS: Final = (0.1, 5.0)
#: Seconds between two reads of all open nodes, at least. Such a read shows the progress.
FULL_READ: Final = 1.0
#: Such a read follows at the earliest after this many times the duration of the one before.
_READ_SHARE: Final = 20
#: The number of changes after which the notes are stored at once.
UNSAVED_ENDS: Final = 256
#: Seconds after which changes of the notes are stored with the next evaluation, and the time until this
#: evaluation if no node wakes it. A flow that ends before takes neither request.
SAVE_EVERY: Final = 1.0
SAVE_TIMER: Final = 1.1
#: Seconds after its evaluation for which a process relies on its state of a flow. Request keys last longer.
_RECENT: Final = 600.0
#: Seconds between two reads of a flow that its worker has not handed off yet, and then until the next try.
_HAND_OFF_PAUSES: Final = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
_HAND_OFF_TIMER: Final = 0.25
#: The number of reads from which an evaluation pauses for as long as it took. Meanwhile the wake-ups of
#: other ends fold into one, so that reads take at most half of the time.
_MANY_READS: Final = 64
_LONGEST_PAUSE: Final = 0.5
#: Seconds until the next evaluation of a flow whose nodes wait for room in a queue with `max_waiting`.
FULL_PAUSE: Final = 1.0


class EvaluationError(Exception):
    """The evaluation failed by an error that allows no retry, and is retried nevertheless."""


@define(eq=False)
class Evaluator:
    """Evaluates the flows of an app in one process."""

    _context: FlowContext
    _cache: FlowCache = field(factory=FlowCache, init=False)
    _batches: BatchEvaluator = field(init=False)

    @_batches.default
    def _make_batches(self) -> BatchEvaluator:
        return BatchEvaluator(self._context)

    async def start(self, job: Job) -> None:
        """Enqueue the first nodes of a flow, and its evaluation, before the flow is handed off.

        `job` is the claimed flow job. A repeat after a crash is safe, as that of an evaluation.
        """
        opened = await self._context.storage_handle.ensure_open()
        storage = SharedRequests.of(opened)
        hint = Hint(token=f"start {job.revision}")
        if (flow := _decode_new(job)) is None:
            await storage.enqueue(EVALUATIONS, [wake_up_request(job.id, hint)])
            return
        flow.hint, flow.read_at = msgspec.json.encode(hint), time.monotonic()
        needs_reads = flow.shared or not storage.capabilities.cross_queue
        seconds = SHARED_TIMERS[0] if needs_reads else SAVE_TIMER
        timer = wake_up_request(job.id, hint, delay=int(1000 * seconds))
        with _no_final_errors(job.id):
            try:
                await asyncio.gather(
                    storage.enqueue(EVALUATIONS, [timer]),
                    self._advance(storage, opened.limits, flow),
                )
            except QueueFull:
                again = wake_up_request(job.id, hint, delay=int(1000 * FULL_PAUSE))
                await storage.enqueue(EVALUATIONS, [again])
                return
            if flow.state.is_over:
                await storage.enqueue(EVALUATIONS, [wake_up_request(job.id, hint)])
        self._cache.put(flow)

    async def evaluate(self, id: str, hint: bytes) -> None:
        """Run one evaluation. Return after the end of the flow, else raise Snooze until the next one.

        `hint` is the payload of the evaluation.
        """
        opened = await self._context.storage_handle.ensure_open()
        try:
            with _no_final_errors(id):
                await self._evaluate(SharedRequests.of(opened), opened.limits, id, hint)
        except FlowChanged:
            raise Snooze(delay=_HAND_OFF_TIMER) from None
        except QueueFull:
            raise Snooze(delay=FULL_PAUSE) from None

    async def _evaluate(self, storage: Storage, limits: Limits, id: str, hint: bytes) -> None:
        began = time.monotonic()
        # After an error the flow is not put back: its state in memory may be ahead of the storage.
        flow = self._cache.take(id)
        slots: dict[int, Slot] = {}
        worker = flow_worker()
        ends = worker.take_ends(id) if worker is not None else {}
        if flow is not None and not _is_full_read_due(flow, hint):
            # The plan may have 1 MiB, so the flow is not read. A stale state does no harm: an enqueue that
            # repeats gets the first answer, and `report` and the end find that the run has ended.
            flow.state.begin()
            changed = apply_ends(flow, ends)
            slots = await read_slots(storage, flow, flow.state.watched())
            changed = apply_slots(flow, slots) or changed or flow.state.is_over
        else:
            changed = True
            if (flow := await self._load(storage, id, flow)) is None:
                return
            await self._prepare(storage, flow)
            flow.state.begin()
            apply_ends(flow, ends)
            await _read_open(storage, flow, hint)
        if changed:
            await self._advance(storage, limits, flow)
        if flow.state.is_over:
            await end_flow(storage, flow)
            return
        self._cache.put(flow)
        await _pause(len(slots), began)
        raise Snooze(delay=_timer(flow, storage, changed=changed))

    async def _load(self, storage: Storage, id: str, known: LiveFlow | None) -> LiveFlow | None:
        """Return the flow once it is handed off. None if it has ended, or waits to be started.

        Raises Snooze while the flow is under the lease of the worker that starts it.
        """
        for pause in (*_HAND_OFF_PAUSES, None):
            (slot,) = await storage.get(FLOWS, [id])
            job = slot.current
            if job is None:
                await clean_up(storage, id, slot.outcome)
                await clean_up_batch(storage, id, slot.outcome)
                return None
            if job.run is None:  # its start enqueues another evaluation
                return None
            if job.run.lease is None:
                return await self._decode(storage, job, known)
            if pause is not None:
                await asyncio.sleep(pause)
        raise Snooze(delay=_HAND_OFF_TIMER)

    async def _decode(self, storage: Storage, job: Job, known: LiveFlow | None) -> LiveFlow | None:
        """Return the flow of a job. End a flow whose plan cannot be decoded, and return None.

        A batch is evaluated here: the result is None after its end, and before it Snooze is raised.
        """
        if is_batch(job.data.attributes):
            await self._batches.evaluate(storage, job)
            return None
        try:
            flow = refresh_flow(known, job)
        except (ValueError, IndexError) as error:
            reason = Error(type="BadPlan", message=f"the flow cannot be read: {error}", kind="permanent")
            await storage.finish(FLOWS, job.id, Fail(error=reason), job.revision)
            return None
        if flow is not known:
            flow.saved_at = time.monotonic()
        return flow

    async def _prepare(self, storage: Storage, flow: LiveFlow) -> None:
        """Apply a retry and a cancellation of the flow. Raises FlowChanged after a cancellation."""
        if flow.noted_revision != flow.revision:
            await restart_nodes(storage, flow)
        if is_cancel_requested(flow):
            await cancel_flow(storage, flow)
            raise FlowChanged

    async def _advance(self, storage: Storage, limits: Limits, flow: LiveFlow) -> None:
        """Enqueue the nodes that are ready, read the nodes that the next decisions need, store the notes."""
        state, now = flow.state, time.monotonic()
        flow.is_current = now - flow.evaluated_at < _RECENT
        while True:
            enqueued = await enqueue_nodes(self._context, storage, limits, flow)
            if numbers := state.next_reads():
                apply_slots(flow, await read_slots(storage, flow, numbers))
            elif not enqueued:
                break
        flow.evaluated_at = now
        if _must_save(flow, now):
            await save_notes(storage, flow)
            flow.saved_at = now
        await report_failure(storage, flow)


async def _read_open(storage: Storage, flow: LiveFlow, hint: bytes) -> None:
    began = time.monotonic()
    apply_slots(flow, await read_slots(storage, flow, flow.state.open_numbers()))
    flow.hint, flow.read_at = hint, time.monotonic()
    flow.read_seconds = flow.read_at - began


def _must_save(flow: LiveFlow, now: float) -> bool:
    """Return whether to store the notes at the end of this evaluation.

    A new flow needs no notes for its decisions: before an enqueue, a process reads the node. So a short flow
    saves these requests. The end of a shared node, and the enqueues of a retry, are known by the notes alone.
    """
    state = flow.state
    if not (state.unsaved or state.must_save):
        return False
    if state.is_over:
        return False  # end_flow stores the notes of a failed flow
    needs_notes = bool(flow.shared) or flow.revision != flow.stamp
    is_due = state.unsaved >= UNSAVED_ENDS or now - flow.saved_at >= SAVE_EVERY
    return state.must_save or needs_notes or is_due


def _decode_new(job: Job) -> LiveFlow | None:
    """Return the flow of a claimed job before its first evaluation; None if only an evaluation may start it.

    That is so for a batch, a retry, a flow to be cancelled, and a plan that cannot be decoded.
    """
    if is_batch(job.data.attributes) or job.data.memo is not None or job.run is None:
        return None
    try:
        flow = decode_flow(job)
    except (ValueError, IndexError):
        return None
    flow.saved_at = time.monotonic()
    return None if is_cancel_requested(flow) else flow


@contextmanager
def _no_final_errors(id: str) -> Iterator[None]:
    """Turn errors that allow no retry into EvaluationError, which a worker retries."""
    try:
        yield
    except (PermanentError, Refused) as error:
        raise EvaluationError(f"the evaluation of the flow {id!r} is retried: {error}") from error


def _is_full_read_due(flow: LiveFlow, hint: bytes) -> bool:
    """Return whether to read all open nodes: after a hint, and by time."""
    pause = max(FULL_READ, _READ_SHARE * flow.read_seconds)
    return hint != flow.hint or time.monotonic() - flow.read_at >= pause


def _timer(flow: LiveFlow, storage: Storage, *, changed: bool) -> float:
    """Return the seconds until the next evaluation."""
    if storage.capabilities.cross_queue and not flow.has_shared:
        return SAVE_TIMER if flow.state.unsaved else TIMER
    flow.pause = SHARED_TIMERS[0] if changed else min(2 * flow.pause, SHARED_TIMERS[1])
    return flow.pause


async def _pause(reads: int, began: float) -> None:
    if reads >= _MANY_READS:
        await asyncio.sleep(min(_LONGEST_PAUSE, time.monotonic() - began))


#: A flow never fails because its start or its evaluation did: they are retried until they succeed.
_LIMITS: Final = HandlerLimits(
    timeout=300_000, max_retries=None, max_timeouts=None, max_stalls=None, backoff=Exponential(1, 60)
)
#: Both handlers run before the jobs of most tasks, so that nodes are enqueued early.
_PRIORITY: Final = 200
#: Both wait for the storage most of the time, so they take little capacity.
_SIZE: Final = 1


@define(eq=False)
class FlowHandlers:
    """The functions behind the two queues of flows."""

    _evaluator: Evaluator

    async def start(self, job: Job) -> None:
        """Enqueue the first nodes of a flow, and hand the flow off."""
        await self._evaluator.start(job)
        current_job().hand_off()

    async def evaluate(self, id: str, hint: bytes) -> None:
        """Run one evaluation of a flow."""
        await self._evaluator.evaluate(id, hint)


def register_flow_handlers(context: FlowContext) -> None:
    """Register the handlers of flows and evaluations. Raises DuplicateHandler."""
    handlers = FlowHandlers(Evaluator(context))
    context.handlers.register(_build_handler(FLOWS, handlers.start, _flow_arguments))
    # The log of evaluations would show only releases.
    settings = SettingsPatch(log_level="off")
    context.handlers.register(_build_handler(EVALUATIONS, handlers.evaluate, _evaluation_arguments, settings))


def _flow_arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (job,), {}


def _evaluation_arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (job.id, job.data.payload), {}


def _build_handler(queue: str, function: Any, decode: Any, settings: SettingsPatch | None = None) -> Handler:
    return Handler(
        queue=queue,
        function=function,
        is_async=True,
        serde=JSON,
        decode_arguments=decode,
        limits=_LIMITS,
        size=_SIZE,
        queue_priority=_PRIORITY,
        queue_settings=settings,
    )
