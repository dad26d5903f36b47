"""The schedules of a queue that an application makes at run time: `task.schedule(...)`, `queue.schedules`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from msgspec.structs import replace

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.handler_registry import schedule_of
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.arguments import Seconds, utc_datetime
from dibs.client.status import Status, slot_status
from dibs.client.stored_schedules import (
    find_schedules,
    has_schedule,
    pause_schedule,
    readable_schedule,
    remove_schedule,
    schedule_id,
    schedule_name,
    set_schedule,
)
from dibs.errors import Refused
from dibs.model.check_values import check_optional_number
from dibs.model.job import JobData, Slot
from dibs.model.requests import DEFAULT_UPDATE
from dibs.model.schedule import PAUSED_UNTIL, Every, Overlap

if TYPE_CHECKING:
    from dibs.client.sync.queue import BlockingSchedules

_DECIDED: Final = "the schedule decides when its jobs run; leave {} out of the options of the call"


@frozen(kw_only=True)
class ScheduleStatus:
    """A schedule as it is stored."""

    queue: str
    """Name of the queue."""
    name: str
    """Name of the schedule; "" for the schedule that a task declares with `every` or `cron`."""
    cron: str | None
    """The cron expression; None for a schedule with an interval, and for one that cannot be read."""
    tz: str | None
    """Time zone of `cron`."""
    every: float | None
    """The interval in seconds; None for a schedule with a cron expression."""
    catch_up: bool
    """True runs the job once after missed times; False skips to the next time."""
    overlap: Overlap
    """The rule for times that come during a run: "queue", "skip" or "replace", as in `app.task(...)`."""
    paused: bool
    """True from `pause` to `resume`."""
    next_run: datetime | None
    """Time of the next run; None for a paused schedule, and for one that runs now."""
    job: Status
    """The status of the job of the next run, or of the run that is active."""


class Schedules:
    """The schedules of a queue, each with a name: `await report.queue.schedules.pause("tenant-7")`.

    A schedule is stored in the job of its next run, whose id is "schedule:" and the name. The end of each run
    enqueues the next one in the same atomic step. Schedules cost a worker nothing at its start, however many.
    """

    def __init__(self, client: QueueClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"<Schedules of {self._client.label}>"

    @property
    def sync(self) -> BlockingSchedules:
        """These schedules with blocking methods, for code without an event loop."""
        from dibs.client.sync.queue import BlockingSchedules  # noqa: PLC0415 - async programs never load it

        return BlockingSchedules(self)

    async def set(
        self,
        name: str,
        call: Bound[Any],
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        catch_up: bool = True,
        overlap: Overlap = "queue",
    ) -> ScheduleStatus:
        """Make a schedule, or change the one with this name in place. It may be repeated.

            await queue.schedules.set("digest", queue.bind({"to": "ada"}), cron="0 7 * * *")

        - `name`: 1 to 503 bytes.
        - `call`: the job of each run, made with `task.bind(...)` or `queue.bind(...)` of this queue. It may
          have options such as `priority` and `timeout`, but no id, time, `on_conflict` and `start_by`.
        - `cron` and `tz`, or `every`, `catch_up` and `overlap`: as in `app.task(...)`.

        New times apply from now on; a run that is due already still comes. A change of the call alone keeps
        the time of the next run. An active run ends with its own arguments. A paused schedule stays paused.
        Returns the schedule. Raises Refused naming the argument at fault, StorageError, OutcomeUnknown.
        """
        id = schedule_id(name)
        options = {"cron": cron, "every": every, "tz": tz, "catch_up": catch_up, "overlap": overlap}
        schedule = replace(schedule_of(options), data=self._data_of(call))
        storage = await self._client.bounded_storage()
        await set_schedule(storage, self._client.name, id, schedule)
        status = await self.get(name)
        if status is None:
            raise Refused(
                f"another program removed the schedule {name!r} just now; set it again", field="name"
            )
        return status

    def _data_of(self, call: object) -> JobData:
        queue = self._client.name
        if not isinstance(call, Bound):
            raise Refused(
                f"call is {call!r:.60}; make it with task.bind(...) or queue.bind(...)", field="call"
            )
        if call.queue != queue:
            raise Refused(f"call is for queue {call.queue!r}; this schedule is of {queue!r}", field="call")
        request = call.request
        overrides = request.job.data.overrides
        given = {
            "id": call.has_id,
            "run_at": request.job.run_at is not None,
            "delay": request.job.delay is not None,
            "on_conflict": request.on_conflict != DEFAULT_UPDATE,
            "request_key": request.request_key is not None,
            "start_by": overrides is not None and isinstance(overrides.start_by, int),
        }
        for field, is_given in given.items():
            if is_given:
                raise Refused(_DECIDED.format(field), field=field)
        return request.job.data

    async def get(self, name: str) -> ScheduleStatus | None:
        """Return the schedule with this name; None if there is none.

        Example: `schedule = await queue.schedules.get("digest")`
        """
        id = schedule_id(name)
        storage = await self._client.bounded_storage()
        [slot] = await storage.get(self._client.name, [id])
        return self._status(id, slot) if has_schedule(slot) else None

    async def list(self, *, limit: int | None = None) -> Sequence[ScheduleStatus]:
        """Return the schedules of the queue, in any order, with the one that the task declares.

            names = [schedule.name for schedule in await queue.schedules.list()]

        It reads all waiting and active jobs of the queue. `limit`: most schedules to return; None for all.
        """
        check_optional_number("limit", limit, 1, 2**53)
        storage = await self._client.bounded_storage()
        found: list[ScheduleStatus] = []
        async for id, slot in find_schedules(storage, self._client.name):
            found.append(self._status(id, slot))
            if len(found) == limit:
                break
        return found

    async def pause(self, name: str) -> bool:
        """Stop a schedule until `resume`. Return False if there is none with this name.

            paused = await queue.schedules.pause("digest")

        An active run goes on. A retry of it waits for `resume`, too.
        """
        return await self._pause(name, paused=True)

    async def resume(self, name: str) -> bool:
        """Resume a paused schedule at its next time. Return False if no schedule has this name.

        Example: `resumed = await queue.schedules.resume("digest")`
        """
        return await self._pause(name, paused=False)

    async def _pause(self, name: str, *, paused: bool) -> bool:
        storage = await self._client.bounded_storage()
        return await pause_schedule(storage, self._client.name, schedule_id(name), paused=paused)

    async def remove(self, name: str) -> bool:
        """End a schedule. Return False if there is none with this name.

            removed = await queue.schedules.remove("digest")

        An active run goes on; no retry of it and no further run comes.
        """
        storage = await self._client.bounded_storage()
        return await remove_schedule(storage, self._client.name, schedule_id(name))

    def _status(self, id: str, slot: Slot) -> ScheduleStatus:
        schedule = readable_schedule(slot)
        job = slot_status(self._client, id, slot)
        assert job is not None, "bug in dibs: a schedule without a job"  # noqa: S101
        times = None if schedule is None else schedule.times
        cron = None if times is None or isinstance(times, Every) else times
        next_run = slot.successor.run_at if slot.successor is not None else None
        if slot.current is not None and slot.current.run is None:
            next_run = slot.current.run_at
        return ScheduleStatus(
            queue=self._client.name,
            name=schedule_name(id),
            cron=None if cron is None else cron.expression,
            tz=None if cron is None else cron.tz,
            every=times.length / 1000 if isinstance(times, Every) else None,
            catch_up=schedule is None or schedule.catch_up,
            overlap="queue" if schedule is None else schedule.overlap,
            paused=schedule is not None and schedule.paused,
            next_run=None if next_run is None or next_run == PAUSED_UNTIL else utc_datetime(next_run),
            job=job,
        )
