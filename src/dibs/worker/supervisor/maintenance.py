"""The supervisor's regular maintenance of its queues: reaping, pruning, the repair of flows, and the
ticks of periodic tasks. Several supervisors may do it at a time.

A tick is the job that runs a schedule once. The schedules of periodic tasks are stored at the start of
a worker, and missing ticks every minute. Schedules made at run time cost a worker nothing at its
start: their ticks carry them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from attrs import define, field

from dibs.client.calls.handler import Handler
from dibs.client.stored_schedules import storage_now
from dibs.client.work_report import WorkReport
from dibs.maintenance import flow_repair
from dibs.maintenance.reap import ReapCandidates, Rotation, prune, reap
from dibs.maintenance.ticks import (
    CHECK_EVERY,
    apply_declared_schedule,
    enqueue_missing_tick,
    holds_only_ticks,
)
from dibs.model.error_text import summarize_exception
from dibs.model.results import Counts
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage

logger = logging.getLogger("dibs.worker")

#: Longest pause between two reaps, in seconds. Jobs of dead workers wait this long after their lease expired.
REAP_EVERY: Final = 0.8
#: Seconds between two prunes of a queue whose jobs this worker runs.
PRUNE_EVERY: Final = 60.0
#: Largest number of other queues that are pruned every PRUNE_EVERY seconds.
IDLE_QUEUES: Final = 10


@define(eq=False)
class Maintenance:
    """Loops that reap and prune the queues, and repair flows. After an error, the next turn tries again."""

    _storage: Storage
    _queues: Sequence[str]
    _report: WorkReport
    #: Seconds after which a lease expires, and seconds between two renewals.
    _lease: float
    _heartbeat: float
    _candidates: ReapCandidates = field(init=False)
    #: The queues in which a prune is likely to find expired records.
    _to_prune: set[str] = field(factory=set, init=False)
    _idle: Rotation = field(init=False)

    def __attrs_post_init__(self) -> None:
        for queue in self._queues:
            # The report has a row for each queue, including the queues without runs.
            self._report.queue(queue)
        self._candidates = ReapCandidates(self._storage, self._queues)
        self._idle = Rotation(self._queues, IDLE_QUEUES)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return endless coroutines. The caller runs them as tasks, and cancels the tasks at the end."""
        loops = [self._keep_reaping(), self._keep_pruning()]
        return [*loops, self._keep_evaluating_flows()] if FLOWS in self._queues else loops

    async def _keep_reaping(self) -> None:
        while True:
            found = await self._reap_candidates()
            await asyncio.sleep(self._pause(found))

    def _pause(self, found: int) -> float:
        """Return the seconds until the next reap, after one of `found` queues.

        If no queue has a run under a lease, the next reap need not come soon. A lease is renewed once a
        heartbeat, so the lease of a job that is claimed from now on lasts for the rest of its time, if the
        other workers have the same settings.
        """
        often = min(self._heartbeat, REAP_EVERY)
        return often if found else max(often, min(2 * self._heartbeat, self._lease - self._heartbeat))

    async def _reap_candidates(self) -> int:
        """Reap the queues that may have jobs under expired leases, and return their number."""
        try:
            candidates = await self._candidates.select_queues()
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; the next turn may succeed
            logger.warning(
                "counting the queues failed, so they were not reaped: %s", summarize_exception(error)
            )
            return 1
        for queue in candidates:
            try:
                reaped = await reap(self._storage, queue)
            except Exception as error:  # noqa: BLE001 - as above
                logger.warning("%s: reaping failed: %s", queue, summarize_exception(error))
            else:
                self._report.queue(queue).reaped += len(reaped)
        return len(candidates)

    async def _keep_pruning(self) -> None:
        """Prune the active queues every PRUNE_EVERY seconds, and with them the next of the others."""
        claimed: dict[str, int] = {}
        while True:
            await asyncio.sleep(PRUNE_EVERY)
            latest = {queue: self._report.queue(queue).claimed for queue in self._queues}
            self._to_prune.update(queue for queue in latest if latest[queue] != claimed.get(queue, 0))
            claimed = latest
            for queue in dict.fromkeys((*self._to_prune, *self._idle.next_turn())):
                await self._prune(queue)

    async def _prune(self, queue: str) -> None:
        try:
            pruned = await prune(self._storage, queue)
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("%s: pruning failed: %s", queue, summarize_exception(error))
            return
        if pruned.outcomes or pruned.request_keys or pruned.events:
            self._to_prune.add(queue)
        else:
            self._to_prune.discard(queue)

    async def _keep_evaluating_flows(self) -> None:
        """Bring missing evaluations of flows back, at the start and every CHECK_EVERY seconds."""
        repair = flow_repair.FlowRepair(self._storage)
        while True:
            try:
                found = await repair.check()
            except Exception as error:  # noqa: BLE001 - as above
                logger.warning("checking the running flows failed: %s", summarize_exception(error))
            else:
                if found:
                    logger.warning("%d running flows had no evaluation, and have one again", found)
            await asyncio.sleep(flow_repair.CHECK_EVERY)


#: Largest number of schedules with a live job that are checked every CHECK_EVERY seconds.
LIVE_SCHEDULES: Final = 10


class PeriodicTasks:
    """The schedules of the queues that one worker serves, and the repair of these schedules."""

    def __init__(self, storage: Storage, handlers: Iterable[Handler]) -> None:
        self._storage = storage
        self._declared = {handler.queue: handler.schedule for handler in handlers}
        self._schedules = {
            queue: schedule for queue, schedule in self._declared.items() if schedule is not None
        }
        self._live = Rotation(tuple(self._schedules), LIVE_SCHEDULES)

    async def apply_declared_schedules(self) -> None:
        """Store each declared schedule, and remove those of an older release. Log errors, and never raise.

        After an error, `keep_enqueueing_missing_ticks` stores a missing tick later. A changed or removed
        schedule stays as it is until the next start of a worker.
        """
        if not self._declared:
            return
        try:
            now = await storage_now(self._storage, next(iter(self._declared)))
            queues = await self._queues_with_schedules()
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.warning(
                "storing the schedules of periodic tasks failed, trying again in a minute: %s",
                summarize_exception(error),
            )
            return
        for queue in queues:
            with self._logged_errors(queue):
                await apply_declared_schedule(self._storage, queue, self._declared[queue], now)

    async def _queues_with_schedules(self) -> Sequence[str]:
        """Return the queues with a declared schedule, and those that may have one of an older release."""
        others = tuple(queue for queue, schedule in self._declared.items() if schedule is None)
        counts = await self._storage.counts(others) if others else {}
        live = [queue for queue, numbers in counts.items() if numbers.waiting or numbers.active]
        return (*self._schedules, *live)

    async def keep_enqueueing_missing_ticks(self) -> None:
        """Enqueue missing ticks every CHECK_EVERY seconds, until cancelled."""
        while self._schedules:
            await asyncio.sleep(CHECK_EVERY)
            await self._enqueue_missing_ticks(await self._queues_to_check())

    async def _queues_to_check(self) -> Sequence[str]:
        """Return the queues without a live job, whose tick is missing, and the next few of the others."""
        if len(self._schedules) <= LIVE_SCHEDULES:
            return tuple(self._schedules)
        try:
            counts = await self._storage.counts(tuple(self._schedules))
        except Exception as error:  # noqa: BLE001 - as below
            logger.warning(
                "counting the jobs of periodic tasks failed, trying again in a minute: %s",
                summarize_exception(error),
            )
            return ()
        missing = [queue for queue, numbers in counts.items() if not (numbers.waiting or numbers.active)]
        return tuple(dict.fromkeys((*missing, *self._live.next_turn())))

    async def _enqueue_missing_ticks(self, queues: Sequence[str]) -> None:
        for queue in queues:
            with self._logged_errors(queue):
                await enqueue_missing_tick(self._storage, queue, self._schedules[queue])

    @contextmanager
    def _logged_errors(self, queue: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; the next call may succeed
            logger.warning(
                "%s: enqueueing the next tick failed, trying again in a minute: %s",
                queue, summarize_exception(error),
            )  # fmt: skip

    async def queues_with_ticks_only(self, counts: Mapping[str, Counts]) -> set[str]:
        """Return the queues whose only live jobs are ticks that wait for their time."""
        candidates = [queue for queue, numbers in counts.items() if _has_only_scheduled_jobs(numbers)]
        return {queue for queue in candidates if await holds_only_ticks(self._storage, queue)}


def _has_only_scheduled_jobs(counts: Counts) -> bool:
    return counts.waiting == counts.scheduled > 0 and not counts.blocked
