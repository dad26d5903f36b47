"""A queue's own log as a history: what it tells of each attempt, and what is read of the ids afterwards.

At level `runs` the log tells when attempts began and how they ended; at level `all` also what was enqueued.
There are no clients in it and no payloads: rules that speak of those are not tested.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import dropwhile
from typing import NamedTuple

from dibs.model.events import LogEvent
from dibs.storage.protocol import Storage
from dibs_conformance.history.call_steps import read
from dibs_conformance.history.step import Op, Step

PAGE = 1000
#: Between two events, so that a claim of level `runs` can be put before its end.
STRIDE = 4

#: How each end of an attempt was asked for.
HOW: dict[str, str] = {
    "completed": "complete",
    "failed": "fail",
    "cancelled": "cancelled",
    "retried": "retry",
    "timed_out": "retry",
    "released": "release",
}
ENQUEUED = frozenset({"queued", "updated", "blocked"})


async def log_of(storage: Storage, queue: str) -> list[Step]:
    """Read the log of a queue from its start, and then every id in it."""
    events, trimmed = await events_of(storage, queue)
    steps = [Step(op="partial", queue=queue)] if trimmed or not complete(events) else []
    steps += steps_of(queue, events)
    ids = list(dict.fromkeys(event.id for event in events if event.id))
    moment = STRIDE * (len(events) + 1)
    return [*steps, *[step async for step in reads(storage, queue, ids, moment)]]


async def events_of(storage: Storage, queue: str) -> tuple[list[LogEvent], bool]:
    """All there is in the log, and whether its beginning was trimmed."""
    found: list[LogEvent] = []
    page = await storage.events(queue, limit=PAGE)
    trimmed = page.fell_off
    while page.events:
        found += (event for _, event in page.events)
        page = await storage.events(queue, after=page.offset, limit=PAGE)
    return found, trimmed


def complete(events: list[LogEvent]) -> bool:
    """Whether the log began with every id, and told everything since."""
    first = {event.id: event.kind for event in reversed(events) if event.id}
    begun = dropwhile(lambda event: not event.id, events)
    return all(kind == "queued" for kind in first.values()) and all(e.kind != "configured" for e in begun)


def steps_of(queue: str, events: list[LogEvent]) -> Iterator[Step]:
    """Tell events as steps, each at a moment of its own: the log has put them in order."""
    claimed = {(event.id, event.fence) for event in events if event.kind == "claimed"}
    for number, event in enumerate(events, 1):
        moment = STRIDE * number
        if event.fence and event.kind in ENDINGS and (event.id, event.fence) not in claimed:
            yield claim_of(queue, event, moment - 2)
        step = step_of(queue, event, moment)
        if step is not None:
            yield step


def claim_of(queue: str, event: LogEvent, moment: int) -> Step:
    """The claim that an event speaks of."""
    return Step(
        op="claim",
        client=event.holder,
        began=moment,
        ended=moment,
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


ENDINGS = frozenset({*HOW, "stalled"})


def step_of(queue: str, event: LogEvent, moment: int) -> Step | None:
    """One event; None for what no rule speaks of."""
    if event.kind == "claimed":
        return claim_of(queue, event, moment)
    told = told_of(event)
    if told is None:
        return None
    return Step(
        op=told.op,
        queue=queue,
        id=event.id,
        began=moment,
        ended=moment,
        now=event.at,
        status=told.status,
        how=told.how,
        fence=event.fence,
        first=event.first,
        revision=event.revision,
    )


class Told(NamedTuple):
    """What a call was, and what it answered."""

    op: Op
    status: str
    how: str = ""


def told_of(event: LogEvent) -> Told | None:
    if event.kind in ENQUEUED:
        return Told("enqueue", event.kind)
    if event.kind == "stalled":
        return Told("reap", "stalled")
    if event.kind == "forgotten":
        return Told("forget", "forgotten")
    if event.kind == "cancelled" and not event.fence:
        return Told("cancel", "cancelled")
    if event.kind not in HOW:
        return None
    back = event.kind in ("retried", "timed_out", "released")
    return Told("settle", "returned" if back else "done", HOW[event.kind])


async def reads(storage: Storage, queue: str, ids: list[str], moment: int) -> AsyncIterator[Step]:
    """What is there of each id now."""
    for start in range(0, len(ids), PAGE):
        some = ids[start : start + PAGE]
        for id, slot in zip(some, await storage.get(queue, some), strict=True):
            yield Step(
                op="get", began=moment, ended=moment, queue=queue, id=id, status="read", read=read(slot)
            )
