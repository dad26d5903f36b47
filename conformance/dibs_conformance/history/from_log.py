"""The conversion of the event log of a queue to a history, which ends with a read of each id at rest.

At log level `runs` the log shows when attempts began and how they ended. At level `all` it also shows
enqueues. It contains no clients and no payloads, so rules that need them are not tested.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import dropwhile
from typing import NamedTuple

from dibs.model.events import LogEvent
from dibs.storage.protocol import Storage
from dibs_conformance.steps import Op, RecordedStep
from dibs_conformance.verbs.get import recorded_slot

PAGE = 1000
#: Time between the steps of two events, in units of the history. A gap is left for the claim that an event at
#: level `runs` implies.
TIME_STEP = 4

#: The settle action that makes each kind of event.
ACTIONS: dict[str, str] = {
    "completed": "complete",
    "failed": "fail",
    "cancelled": "cancelled",
    "retried": "retry",
    "timed_out": "retry",
    "released": "release",
}
ENQUEUED = frozenset({"queued", "updated", "blocked"})


async def log_of(storage: Storage, queue: str) -> list[RecordedStep]:
    """Read the log of a queue from its start, then the ids in it. Leave out ids that changed meanwhile."""
    events, trimmed, offset = await events_of(storage, queue)
    steps = [RecordedStep(op="partial", queue=queue)] if trimmed or not is_complete(events) else []
    steps += steps_of(queue, events)
    ids = list(dict.fromkeys(event.id for event in events if event.id))
    reads = [step async for step in read_ids(storage, queue, ids, TIME_STEP * (len(events) + 1))]
    changed = {event.id for event in (await events_of(storage, queue, offset))[0]}
    return [*steps, *(step for step in reads if step.id not in changed)]


async def events_of(
    storage: Storage, queue: str, after: str | None = None
) -> tuple[list[LogEvent], bool, str]:
    """Return all events after an offset, whether events behind it were trimmed, and the last offset."""
    found: list[LogEvent] = []
    page = await storage.events(queue, after=after, limit=PAGE)
    trimmed = page.fell_off
    while page.events:
        found += (event for _, event in page.events)
        page = await storage.events(queue, after=page.offset, limit=PAGE)
    return found, trimmed, page.offset


def is_complete(events: list[LogEvent]) -> bool:
    """Return whether the log contains the first enqueue of every id, at an unchanged log level."""
    first = {event.id: event.kind for event in reversed(events) if event.id}
    begun = dropwhile(lambda event: not event.id, events)
    return all(kind == "queued" for kind in first.values()) and all(e.kind != "configured" for e in begun)


def steps_of(queue: str, events: list[LogEvent]) -> Iterator[RecordedStep]:
    """Yield the events as steps. Each has its own time, because the log is ordered."""
    claimed = {(event.id, event.fence) for event in events if event.kind == "claimed"}
    for number, event in enumerate(events, 1):
        time = TIME_STEP * number
        if event.fence and event.kind in ENDINGS and (event.id, event.fence) not in claimed:
            yield claim_of(queue, event, time - 2)
        step = step_of(queue, event, time)
        if step is not None:
            yield step


def claim_of(queue: str, event: LogEvent, time: int) -> RecordedStep:
    """Return the claim that an event implies."""
    return RecordedStep(
        op="claim",
        client=event.holder,
        began=time,
        ended=time,
        queue=queue,
        id=event.id,
        status="taken",
        now=event.claimed_at or 0,
        fence=event.fence,
        first=event.first,
        revision=event.revision,
        attempt=event.attempt,
        run_at=event.run_at,
    )


ENDINGS = frozenset({*ACTIONS, "stalled"})


def step_of(queue: str, event: LogEvent, time: int) -> RecordedStep | None:
    """Return the step of an event, or None if no rule uses it."""
    if event.kind == "claimed":
        return claim_of(queue, event, time)
    call = logged_call(event)
    if call is None:
        return None
    return RecordedStep(
        op=call.op,
        queue=queue,
        id=event.id,
        began=time,
        ended=time,
        now=event.at,
        status=call.status,
        how=call.how,
        fence=event.fence,
        first=event.first,
        revision=event.revision,
    )


class LoggedCall(NamedTuple):
    """The operation, the answer and the settle action of a logged call."""

    op: Op
    status: str
    how: str = ""


def logged_call(event: LogEvent) -> LoggedCall | None:
    if event.kind in ENQUEUED:
        return LoggedCall("enqueue", event.kind)
    if event.kind == "stalled":
        return LoggedCall("reap", "stalled")
    if event.kind == "forgotten":
        return LoggedCall("forget", "forgotten")
    if event.kind == "cancelled" and not event.fence:
        return LoggedCall("cancel", "cancelled")
    if event.kind not in ACTIONS:
        return None
    came_back = event.kind in ("retried", "timed_out", "released")
    return LoggedCall("settle", "returned" if came_back else "done", ACTIONS[event.kind])


async def read_ids(storage: Storage, queue: str, ids: list[str], time: int) -> AsyncIterator[RecordedStep]:
    """Yield a read step for each id, from the current content of the storage."""
    for start in range(0, len(ids), PAGE):
        batch = ids[start : start + PAGE]
        for id, slot in zip(batch, await storage.get(queue, batch), strict=True):
            yield RecordedStep(
                op="get", began=time, ended=time, queue=queue, id=id, status="read", read=recorded_slot(slot)
            )
