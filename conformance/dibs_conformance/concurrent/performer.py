"""A client that does as it is told, and writes down what came of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dibs.errors import OutcomeUnknown, Refused, StorageError
from dibs.model.events import LogEvent
from dibs.model.job import FAIL_SUFFIX, Slot
from dibs.storage.protocol import Storage
from dibs_conformance.concurrent.actions import Order, words
from dibs_conformance.concurrent.calls import Call, Look

#: Verbs that take several queues.
MANY = frozenset({"grant", "renew", "drop"})
Stamp = Callable[[], float]
Told = Callable[[Call], None]


def ignored(_: Call) -> None:
    """Tell nobody."""


async def perform(
    storage: Storage, client: str, order: Order, stamp: Stamp, told: Told = ignored
) -> list[Call]:
    """Do one act after the other, and return the calls.

    A call is told before it is made and again when it returned: it is known if nobody lives to see its end.
    """
    calls: list[Call] = []
    for act in order.acts:
        now = order.now + act.late
        args = words(act, order.queue, order.hands, now)
        call = Call(client=client, verb=act.verb, queue=order.queue, args=args, now=now, invoked=stamp())
        calls.append(call)
        told(call)
        await make(storage, call)
        if call.fate != "unknown":
            call.returned = stamp()
        order.hands.take(call)
        told(call)
    return calls


async def make(storage: Storage, call: Call) -> None:
    """Make a call and write down what came of it."""
    try:
        call.answer = await called(storage, call)
        call.fate = "answered"
    except OutcomeUnknown as error:
        call.answer = str(error)
    except (StorageError, Refused) as error:
        call.fate, call.answer = "refused", str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the contract knows no such answer
        call.fate, call.answer = "raised", f"{type(error).__name__}: {error}"


def called(storage: Storage, call: Call) -> Coroutine[Any, Any, Any]:
    """Make the call."""
    verb = getattr(storage, call.verb)
    if call.verb in MANY:
        work: Coroutine[Any, Any, Any] = verb([call.queue], **call.args, now=call.now)
    else:
        work = verb(call.queue, **call.args, now=call.now)
    return work


#: More pages than an example fills.
MOST_PAGES = 100


async def look(storage: Storage, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Look:
    """See every id of a queue and its fail jobs, and with `log` the whole log."""
    slots = await storage.get(queue, ids, now=now)
    failed = await _listed(storage, queue + FAIL_SUFFIX, now)
    events = await _log(storage, queue, now) if log else None
    return Look(now=now, slots=dict(zip(ids, slots, strict=True)), failed=failed, events=events)


async def _listed(storage: Storage, queue: str, now: int) -> dict[str, Slot]:
    found: dict[str, Slot] = {}
    after: str | None = None
    for _ in range(MOST_PAGES):
        page = await storage.list(queue, "waiting", after=after, now=now)
        found.update(page.items)
        after = page.after
        if after is None:
            break
    return found


async def _log(storage: Storage, queue: str, now: int) -> list[LogEvent]:
    told: list[LogEvent] = []
    after: str | None = None
    for _ in range(MOST_PAGES):
        page = await storage.events(queue, after=after, now=now)
        told += [event for _, event in page.events]
        after = page.offset
        if not page.events:
            break
    return told
