"""Blocking form of dibs.client.schedules.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.client.calls.bound_job import Bound
from dibs.client.options.durations import Seconds
from dibs.client.schedules import Schedules, ScheduleStatus
from dibs.client.sync.background_loop import run


class BlockingSchedules:
    """Blocking form of Schedules, returned by its property `sync`.

    The schedules of a queue, each with a name: `report.queue.schedules.pause("tenant-7")`.

    A schedule is stored in the job of its next run, whose id is "schedule:" and the name. The end of each run
    enqueues the next one in the same atomic step. Schedules cost a worker nothing at its start, however many.
    """

    def __init__(self, source: Schedules) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    def set(
        self,
        name: str,
        call: Bound[Any],
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        catch_up: bool = True,
    ) -> ScheduleStatus:
        """Make a schedule, or change the one with this name in place. It may be repeated.

        - `name`: 1 to 503 bytes.
        - `call`: the job of each run, made with `task.bind(...)` or `queue.bind(...)` of this queue. It may
          have options such as `priority` and `timeout`, but no id, time, `on_conflict` and `start_by`.
        - `cron` and `tz`, or `every`, and `catch_up`: as in `app.task(...)`.

        New times apply from now on; a run that is due already still comes. A change of the call alone keeps
        the time of the next run. An active run ends with its own arguments. A paused schedule stays paused.
        Returns the schedule. Raises Refused naming the argument at fault, StorageError, OutcomeUnknown.
        """
        return run(
            self._storage_handle,
            "await queue.schedules.set(...)",
            self._source.set(name, call, cron=cron, every=every, tz=tz, catch_up=catch_up),
        )

    def get(self, name: str) -> ScheduleStatus | None:
        """Return the schedule with this name; None if there is none."""
        return run(self._storage_handle, "await queue.schedules.get(...)", self._source.get(name))

    def list(self, *, limit: int | None = None) -> Sequence[ScheduleStatus]:
        """Return the schedules of the queue, in any order, with the one that the task declares.

        It reads all waiting and active jobs of the queue. `limit`: most schedules to return; None for all.
        """
        return run(self._storage_handle, "await queue.schedules.list(...)", self._source.list(limit=limit))

    def pause(self, name: str) -> bool:
        """Stop a schedule until `resume`. Return False if there is none with this name.

        An active run goes on. A retry of it waits for `resume`, too.
        """
        return run(self._storage_handle, "await queue.schedules.pause(...)", self._source.pause(name))

    def resume(self, name: str) -> bool:
        """Resume a paused schedule at its next time. Return False if no schedule has this name."""
        return run(self._storage_handle, "await queue.schedules.resume(...)", self._source.resume(name))

    def remove(self, name: str) -> bool:
        """End a schedule. Return False if there is none with this name.

        An active run goes on; no retry of it and no further run comes.
        """
        return run(self._storage_handle, "await queue.schedules.remove(...)", self._source.remove(name))
