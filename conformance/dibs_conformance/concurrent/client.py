"""The client of the concurrent tests: it runs actions against a storage and records each call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dibs.errors import OutcomeUnknown, Refused, StorageError
from dibs.model.events import LogEvent
from dibs.model.job import FAIL_SUFFIX, Slot
from dibs.storage.protocol import Storage
from dibs_conformance.concurrent.actions import Program, build_arguments
from dibs_conformance.concurrent.calls import Call, Snapshot

#: Operations that take a list of queues.
TAKES_QUEUES = frozenset({"grant", "renew", "drop"})
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
    except OutcomeUnknown as error:
        call.answer = str(error)
    except (StorageError, Refused) as error:
        call.completion, call.answer = "refused", str(error)
    except Exception as error:  # noqa: BLE001 - the contract allows no other exception
        call.completion, call.answer = "raised", f"{type(error).__name__}: {error}"


def _start_call(storage: Storage, call: Call) -> Coroutine[Any, Any, Any]:
    method = getattr(storage, call.operation)
    if call.operation in TAKES_QUEUES:
        work: Coroutine[Any, Any, Any] = method([call.queue], **call.args, now=call.now)
    else:
        work = method(call.queue, **call.args, now=call.now)
    return work


#: Limit on the pages of a listing, so that a storage that never ends a listing cannot hang the tests. No
#: example fills so many pages.
MAX_PAGES = 100


async def take_snapshot(storage: Storage, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
    """Read all ids of a queue and its fail jobs. With `log`, also read all events."""
    slots = await storage.get(queue, ids, now=now)
    failed = await _list_waiting(storage, queue + FAIL_SUFFIX, now)
    events = await _read_log(storage, queue, now) if log else None
    return Snapshot(now=now, slots=dict(zip(ids, slots, strict=True)), failed=failed, events=events)


async def _list_waiting(storage: Storage, queue: str, now: int) -> dict[str, Slot]:
    found: dict[str, Slot] = {}
    after: str | None = None
    for _ in range(MAX_PAGES):
        page = await storage.list(queue, "waiting", after=after, now=now)
        found.update(page.items)
        after = page.after
        if after is None:
            break
    return found


async def _read_log(storage: Storage, queue: str, now: int) -> list[LogEvent]:
    found: list[LogEvent] = []
    after: str | None = None
    for _ in range(MAX_PAGES):
        page = await storage.events(queue, after=after, now=now)
        found += [event for _, event in page.events]
        after = page.offset
        if not page.events:
            break
    return found
