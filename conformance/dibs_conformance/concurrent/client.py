"""The client of the concurrent tests: it runs actions against a storage and records each call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dibs.errors import OutcomeUnknown, Refused, StorageError
from dibs.model.job import FAIL_SUFFIX
from dibs.storage.protocol import Storage
from dibs_conformance.answer_types import wrong_answer
from dibs_conformance.report.exceptions import raised_text
from dibs_conformance.verbs import VERBS, remember
from dibs_conformance.verbs.actions import ClientCall, Program, Snapshot
from dibs_conformance.verbs.events import read_events, read_output
from dibs_conformance.verbs.list import read_list

Clock = Callable[[], float]
OnCall = Callable[[ClientCall], None]


def ignore(_: ClientCall) -> None: ...


async def run_program(
    storage: Storage, client: str, program: Program, clock: Clock, on_call: OnCall = ignore
) -> list[ClientCall]:
    """Run the actions one after the other and return the calls.

    `on_call` is called before each call, and again after the call returned. So a call is recorded even if
    the process is killed during the call.
    """
    calls: list[ClientCall] = []
    for action in program.actions:
        now = program.now and program.now + action.clock_offset
        args = VERBS[action.operation].arguments(action, program.queue, program.state)
        call = ClientCall(
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
        remember(program.state, call)
        on_call(call)
    return calls


async def make_call(storage: Storage, call: ClientCall) -> None:
    """Make a call and set its completion and its answer."""
    try:
        call.answer = await _start_call(storage, call)
        call.completion = "answered"
        if VERBS[call.operation].call is None and (wrong := wrong_answer(call.operation, call.answer)):
            call.completion, call.answer = "raised", wrong
    except OutcomeUnknown as error:
        call.answer = str(error)
    except (StorageError, Refused) as error:
        call.completion, call.answer = "refused", str(error)
    except Exception as error:  # noqa: BLE001 - the contract allows no other exception
        call.completion, call.answer = "raised", raised_text(error)


def _start_call(storage: Storage, call: ClientCall) -> Coroutine[Any, Any, Any]:
    verb = VERBS[call.operation]
    named = {**call.args, "now": call.now or None} if verb.takes_now else dict(call.args)
    if verb.call is not None:
        return verb.call(storage, call.queue, **named)
    queue = [call.queue] if verb.takes_queues else call.queue
    work: Coroutine[Any, Any, Any] = getattr(storage, call.operation)(queue, **named)
    return work


async def take_snapshot(storage: Storage, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
    """Read all ids of a queue and its fail jobs. With `log`, also read its settings and all events."""
    slots = dict(zip(ids, await storage.get(queue, ids, now=now), strict=True))
    failed = dict(await read_list(storage, queue + FAIL_SUFFIX, "waiting", now=now))
    outputs = {}
    if storage.capabilities.output:
        outputs = {id: await read_output(storage, queue, id, now) for id in ids}
    if not log:
        return Snapshot(now=now, slots=slots, failed=failed, outputs=outputs)
    settings = (await storage.export(queue, limit=1)).settings
    entries = (await read_events(storage, queue, now=now)).events
    return Snapshot(
        now=now,
        slots=slots,
        failed=failed,
        outputs=outputs,
        settings=settings,
        events=[event for _, event in entries],
        offsets=[offset for offset, _ in entries],
    )
