"""What a process leaves behind: settled by fence at once, long before its lease would expire."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from typing import Final

from dibs.client.calls.handler import Handler
from dibs.client.work_report import WorkReport
from dibs.errors import Refused
from dibs.model.job import Error
from dibs.model.requests import Fail, Release, RetryLater, SettleAction, Settlement
from dibs.model.results import SettleResult
from dibs.model.retry import is_exhausted
from dibs.storage.protocol import Storage
from dibs.worker.execution.invocation import timeout_error
from dibs.worker.execution.outcome import counter_name
from dibs.worker.supervisor.held_runs import HeldRun

logger = logging.getLogger("dibs.worker")

#: Seconds between attempts while the storage cannot be asked.
AGAIN: Final = 0.5


async def settle_left(
    storage: Storage, left: Sequence[HeldRun], how: Callable[[HeldRun], SettleAction], report: WorkReport
) -> None:
    """Settle the runs a process held, however long the storage cannot be asked."""
    for queue in dict.fromkeys(holding.queue for holding in left):
        held = [holding for holding in left if holding.queue == queue]
        hows = [how(holding) for holding in held]
        answers = await _settle(storage, queue, list(map(_settlement, held, hows)))
        report.add(queue, Counter(map(counter_name, hows, answers)))


def after_crash(
    holding: HeldRun, started: MutableSequence[float], error: Error, handler: Handler, luck: float
) -> SettleAction:
    """Return how a run of a process that died is settled: only what was started is a stall."""
    if holding.overran:
        return after_overrun(holding, handler, luck)
    if not started[holding.run.place]:
        return Release()
    limits = handler.limits.with_overrides(holding.run.own)
    return RetryLater(cause="stall", delay=limits.backoff.delay(holding.run.stalls + 1, luck), error=error)


def after_overrun(holding: HeldRun, handler: Handler, luck: float) -> SettleAction:
    """Return how a run of a process is settled that was ended for its sake: the others are not to blame."""
    if not holding.overran:
        return Release()
    run, limits = holding.run, handler.limits.with_overrides(holding.run.own)
    error = timeout_error(run.timeout)
    if is_exhausted(run.timeouts, limits.max_timeouts):
        return Fail(error=error, handled=handler.handles_failure)
    return RetryLater(cause="timeout", delay=limits.backoff.delay(run.timeouts + 1, luck), error=error)


def _settlement(holding: HeldRun, how: SettleAction) -> Settlement:
    return Settlement(id=holding.run.id, fence=holding.run.fence, action=how)


async def _settle(storage: Storage, queue: str, settlements: Sequence[Settlement]) -> Sequence[SettleResult]:
    while True:
        try:
            return await storage.settle(queue, settlements)
        except Refused:
            # Nothing of ours is in these settlements but a delay; the lease's end brings the jobs back.
            logger.exception("%s: the runs of a dead process could not be settled", queue)
            return [SettleResult("refused") for _ in settlements]
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too: settling twice is safe
            logger.warning("%s: the storage could not be asked, trying again: %s", queue, error)
            await asyncio.sleep(AGAIN)
