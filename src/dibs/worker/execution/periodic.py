"""The schedule of a periodic task. A tick is the job that runs the task once.

The settlement of each tick enqueues the next tick.
"""

from __future__ import annotations

import logging
import time

from dibs.client.calls.handler import Handler
from dibs.model import schedule as model
from dibs.model.requests import SettleAction
from dibs.model.schedule import TICK_ID
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")


def with_next_tick(invocation: Invocation, action: SettleAction) -> SettleAction:
    """Return the action with the next tick added if the job is a tick of a periodic task. Never raises."""
    if invocation.handler.schedule is None:
        return action
    try:
        return add_next_tick(
            invocation.handler,
            invocation.job.id,
            action,
            claimed_at=invocation.claimed_at,
            received_at=invocation.received_at,
        )
    except Exception:
        logger.exception(
            "%s/%s: the next tick could not be computed; the supervisor enqueues missing ticks",
            *invocation.key[:2], extra=invocation.log_fields,
        )  # fmt: skip
        return action


def add_next_tick(
    handler: Handler, job_id: str, action: SettleAction, *, claimed_at: int, received_at: float
) -> SettleAction:
    """Return the action with the next tick added, like `with_next_tick`.

    The parameters are those that the supervisor knows of a run whose process has died.

    `claimed_at` is in ms by the clock of the storage, `received_at` in seconds by time.monotonic().
    """
    if handler.schedule is None or job_id != TICK_ID:
        return action
    # An estimate of the storage's clock: the time of the claim, plus the time since the claim arrived here.
    now = claimed_at + round((time.monotonic() - received_at) * 1000)
    return model.with_next_tick(handler.schedule, handler.queue, action, claimed_at=claimed_at, now=now)
