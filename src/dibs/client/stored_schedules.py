"""The schedules of a queue in the storage: read, made, paused and removed, with the verbs for jobs.

A schedule is stored in its next tick, a job, see dibs.model.schedule. These functions take the id of the
tick. They raise the errors of the storage, and Refused for a schedule that cannot be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from dibs.errors import QueueFull, Refused
from dibs.model.check_values import check_text
from dibs.model.job import Slot
from dibs.model.limits import LIMITS
from dibs.model.requests import EnqueueRequest, JobPatch
from dibs.model.results import State
from dibs.model.rules import STOPPED
from dibs.model.schedule import (
    NAME_PREFIX,
    SCHEDULE_ATTRIBUTE,
    STATE_ATTRIBUTE,
    Schedule,
    changed_tick,
    is_tick_id,
    pending_data,
    read_schedule,
    read_state,
    removal,
)
from dibs.storage.protocol import Storage

#: A lease id that no storage grants. A renewal of it changes no state, and its reply has the storage's time.
UNUSED_LEASE: Final = "0" * 32
#: Most ids that one listing reads at a time.
PAGE: Final = 500
#: The states in which a tick is found. A tick that is claimed before the reading of the waiting jobs reaches
#: it is found by the second reading of the active ones.
STATES: Final[Sequence[State]] = ("active", "waiting", "active")


async def storage_now(storage: Storage, queue: str) -> int:
    """Return the time of the storage, in ms since the epoch."""
    return (await storage.renew([queue], UNUSED_LEASE, 1))[queue].now


def schedule_id(name: str) -> str:
    """Return the id of the ticks of the schedule with this name. Raise Refused for a bad name."""
    check_text("name", name, LIMITS.id - len(NAME_PREFIX))
    return f"{NAME_PREFIX}{name}"


def schedule_name(id: str) -> str:
    """Return the name of the schedule whose ticks have this id; "" for the schedule that a task declares."""
    return id.removeprefix(NAME_PREFIX) if id.startswith(NAME_PREFIX) else ""


def has_schedule(slot: Slot) -> bool:
    """Return whether the slot of an id holds a schedule."""
    data = pending_data(slot)
    return data is not None and SCHEDULE_ATTRIBUTE in data.attributes


def readable_schedule(slot: Slot) -> Schedule | None:
    """Return the schedule of a slot; None without one, or if it cannot be read."""
    data = pending_data(slot)
    try:
        return None if data is None else read_schedule(data)
    except Refused:
        return None


async def set_schedule(storage: Storage, queue: str, id: str, schedule: Schedule) -> None:
    """Make a schedule, or change the one with this id in place. A paused one stays paused.

    Raise QueueFull for a new schedule of a queue that is at its `max_waiting`.
    """
    now = await storage_now(storage, queue)
    [slot] = await storage.get(queue, [id])
    request = changed_tick(schedule, id, slot, now)
    if request is not None:
        await enqueue_tick(storage, queue, request)


async def enqueue_tick(storage: Storage, queue: str, request: EnqueueRequest) -> None:
    """Enqueue the first tick of a schedule. Raise QueueFull if the queue stops it, whatever `when_full` says.

    Later ticks are follow-ups of the tick before, which no bound stops.
    """
    [answer] = await storage.enqueue(queue, [request])
    if answer.status in STOPPED:
        raise QueueFull(
            f"queue {queue!r} has as many waiting jobs as its max_waiting allows, so its schedule was not "
            "stored; repeat the call later, or raise max_waiting",
            queue=queue,
        )


async def find_schedules(storage: Storage, queue: str) -> AsyncIterator[tuple[str, Slot]]:
    """Yield the id and the slot of each schedule of a queue. It reads all waiting and active jobs."""
    found: set[str] = set()
    for state in STATES:
        after: str | None = None
        while True:
            page = await storage.list(queue, state, after=after, limit=PAGE)
            for id, slot in page.items:
                if is_tick_id(id) and id not in found and has_schedule(slot):
                    found.add(id)
                    yield id, slot
            if (after := page.after) is None:
                break


async def pause_schedule(storage: Storage, queue: str, id: str, *, paused: bool) -> bool:
    """Pause a schedule, or resume it with `paused=False`. Return False if the id has none.

    A pause moves the next tick to the end of time, and a resume to the next time of the schedule. An active
    run goes on; a retry of it waits, too.
    """
    while True:
        [slot] = await storage.get(queue, [id])
        data, current = pending_data(slot), slot.current
        if data is None or current is None or SCHEDULE_ATTRIBUTE not in data.attributes:
            return False
        if (read_state(data.attributes) == "paused") == paused:
            return True
        schedule = read_schedule(data)
        if schedule is None:
            return False
        schedule = replace(schedule, paused=paused)
        run_at = schedule.next_tick(await storage_now(storage, queue))
        if current.run is not None:
            [answer] = await storage.enqueue(queue, [EnqueueRequest(job=schedule.job(id, run_at))])
            if answer.status in STOPPED:  # the run has ended since, and its follow-up is the next tick
                continue
            return True
        # Unlike an enqueue, a patch keeps the arguments that another program may set at this moment.
        state = {STATE_ATTRIBUTE: msgspec.json.encode("paused" if paused else None)}
        patch = JobPatch(attributes=state, run_at=run_at)
        if await storage.amend(queue, id, patch) == "amended":
            return True


async def remove_schedule(storage: Storage, queue: str, id: str) -> bool:
    """End a schedule. Return False if the id has none.

    An active run goes on, and no further run or retry comes.
    """
    [slot] = await storage.get(queue, [id])
    if not has_schedule(slot):
        return False
    [answer] = await storage.enqueue(queue, [removal(id)])
    if answer.status != "blocked":
        await storage.cancel(queue, [id])
    return True
