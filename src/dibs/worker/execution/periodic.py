"""The schedule that a claimed job carries. A tick is a job of a schedule.

The settlement of each tick enqueues the next tick.
"""

from __future__ import annotations

import logging
import time

from dibs.client.calls.handler import Handler
from dibs.model import schedule as model
from dibs.model.job import JobData
from dibs.model.requests import Cancelled, Release, SettleAction
from dibs.model.schedule import TICK_ID, UNREADABLE_PAUSE, Schedule, is_tick_id, read_schedule
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")


def may_be_tick(invocation: Invocation) -> bool:
    """Return whether the job may belong to a schedule. It is cheap, because each run asks."""
    has_schedule = bool(invocation.job.data.attributes) or invocation.handler.schedule is not None
    return has_schedule and is_tick_id(invocation.job.id)


def find_schedule(handler: Handler, id: str, data: JobData) -> Schedule | None:
    """Return the schedule of a job; None if it has none. Raise Refused if it cannot be read.

    The job carries it. A tick of a declared schedule that a user enqueued by hand has the schedule of the
    handler. A handler that declares no schedule ends that of an older release.
    """
    if not is_tick_id(id) or (id == TICK_ID and handler.schedule is None):
        return None
    return read_schedule(data) or (handler.schedule if id == TICK_ID else None)


def refuse_tick(invocation: Invocation) -> Release | Cancelled | None:
    """Return the action that settles a claimed tick without a run; None if it may run.

    A worker that cannot read the schedule releases the tick: without the next tick its run would be the last.
    """
    if not may_be_tick(invocation):
        return None
    try:
        return model.refuse_tick(invocation.job)
    except Exception:
        logger.exception(
            "%s/%s: the schedule of the job cannot be read; it waits for a worker that can, or for a change",
            *invocation.key[:2], extra=invocation.log_fields,
        )  # fmt: skip
        return Release(delay=UNREADABLE_PAUSE)


def with_next_tick(invocation: Invocation, action: SettleAction) -> SettleAction:
    """Return the action with the next tick added if the job belongs to a schedule. Never raises."""
    if not may_be_tick(invocation):
        return action
    try:
        return add_next_tick(
            invocation.handler,
            invocation.job.id,
            invocation.job.data,
            action,
            claimed_at=invocation.claimed_at,
            received_at=invocation.received_at,
        )
    except Exception:
        logger.exception(
            "%s/%s: the next tick could not be computed", *invocation.key[:2], extra=invocation.log_fields
        )
        return action


def add_next_tick(
    handler: Handler, id: str, data: JobData, action: SettleAction, *, claimed_at: int, received_at: float
) -> SettleAction:
    """Return the action with the next tick added, like `with_next_tick`. Raise Refused.

    `claimed_at` is in ms by the clock of the storage, `received_at` in seconds by time.monotonic().
    """
    schedule = find_schedule(handler, id, data)
    if schedule is None:
        return action
    # An estimate of the storage's clock: the time of the claim, plus the time since the claim arrived here.
    now = claimed_at + round((time.monotonic() - received_at) * 1000)
    return model.with_next_tick(schedule, handler.queue, id, action, claimed_at=claimed_at, now=now)
