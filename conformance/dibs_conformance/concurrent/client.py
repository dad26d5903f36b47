"""The client of the concurrent tests: it runs actions against a storage and records each call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from dibs.errors import OutcomeUnknown, Refused, StorageError
from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import QueueStep, Settlement
from dibs.model.results import SettleAndClaimResult
from dibs.storage.many_queues import ManyQueues
from dibs.storage.protocol import Storage
from dibs_conformance.answer_types import wrong_answer
from dibs_conformance.concurrent.actions import Program
from dibs_conformance.concurrent.arguments import build_arguments
from dibs_conformance.concurrent.calls import Call, Snapshot
from dibs_conformance.concurrent.page_reads import PAGE_READS, read_events, read_list
from dibs_conformance.report.exceptions import raised_text

#: Operations that take a list of queues.
TAKES_QUEUES = frozenset({"grant", "renew", "drop", "counts"})
#: Operations without the argument `now`.
WITHOUT_NOW = frozenset({"export", "split"})
#: A queue without jobs and leases, for the second step of a `serve`.
EMPTY_QUEUE = "beside"
Clock = Callable[[], float]
OnCall = Callable[[Call], None]


def ignore(_: Call) -> None: ...


async def run_program(
    storage: Storage, client: str, program: Program, clock: Clock, on_call: OnCall = ignore
) -> list[Call]:
    """Run the actions one after the other and return the calls.

    `on_call` is called before each call, and again after the call returned. So a call is recorded even if
    the process is killed during the call.
    """
    calls: list[Call] = []
    for action in program.actions:
        now = program.now + action.clock_offset
        args = build_arguments(action, program.queue, program.state, now)
        call = Call(
            client=client,
            operation=action.operation,
            queue=program.queue,
            args=args,
            now=now,
            invoked=clock(),
        )
        calls.append(call)
        on_call(call)
        await make_call(storage, call)
        if call.completion != "unknown":
            call.returned = clock()
        program.state.record(call)
        on_call(call)
    return calls


async def make_call(storage: Storage, call: Call) -> None:
    """Make a call and set its completion and its answer."""
    try:
        call.answer = await _start_call(storage, call)
        call.completion = "answered"
        if call.operation not in COMPOSED and (wrong := wrong_answer(call.operation, call.answer)):
            call.completion, call.answer = "raised", wrong
    except OutcomeUnknown as error:
        call.answer = str(error)
    except (StorageError, Refused) as error:
        call.completion, call.answer = "refused", str(error)
    except Exception as error:  # noqa: BLE001 - the contract allows no other exception
        call.completion, call.answer = "raised", raised_text(error)


async def serve_two(
    storage: Storage, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, now: int | None
) -> SettleAndClaimResult:
    """Serve a queue, and a second one without jobs. Return the result of the first.

    A storage without the capability `many_queues` gets a settle_and_claim.
    """
    if not storage.capabilities.many_queues:
        return await storage.settle_and_claim(queue, settlements, lease, limit, now=now)
    steps = [QueueStep(EMPTY_QUEUE, limit=1), QueueStep(queue, settlements, limit)]
    answer = await cast("ManyQueues", storage).serve(steps, lease, now=now)
    if wrong := wrong_answer("serve", answer):
        raise TypeError(wrong)
    beside, served = answer
    if not beside.claim.lost:
        raise ValueError(f"a claim in a queue without leases returned {beside.claim}")
    return served


#: Operations that make several calls, or more than one step. Each returns one answer.
COMPOSED: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {**PAGE_READS, "serve": serve_two}


def _start_call(storage: Storage, call: Call) -> Coroutine[Any, Any, Any]:
    named = dict(call.args) if call.operation in WITHOUT_NOW else {**call.args, "now": call.now}
    if call.operation in COMPOSED:
        work: Coroutine[Any, Any, Any] = COMPOSED[call.operation](storage, call.queue, **named)
    else:
        queue = [call.queue] if call.operation in TAKES_QUEUES else call.queue
        work = getattr(storage, call.operation)(queue, **named)
    return work


async def take_snapshot(storage: Storage, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
    """Read all ids of a queue and its fail jobs. With `log`, also read its settings and all events."""
    slots = dict(zip(ids, await storage.get(queue, ids, now=now), strict=True))
    failed = dict(await read_list(storage, queue + FAIL_SUFFIX, "waiting", now=now))
    if not log:
        return Snapshot(now=now, slots=slots, failed=failed)
    settings = (await storage.export(queue, limit=1)).settings
    entries = (await read_events(storage, queue, now=now)).events
    return Snapshot(
        now=now,
        slots=slots,
        failed=failed,
        settings=settings,
        events=[event for _, event in entries],
        offsets=[offset for offset, _ in entries],
    )
