"""The limits of a queue by key and by rate, and turns of keys: which due jobs a claim takes (contract 2).

A claim that meets a job whose key has no room *files* it: the job leaves the order of claims, so that later
claims do not meet it again. A closed key is a row of `closed_keys`. When the key opens, its first filed job
comes back; when that job is claimed or changed, the next one does (QueueRows.put). In a queue with `fair`,
all waiting jobs are filed, and a claim takes the first one of the key whose turn it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from dibs.model import rates, rules
from dibs.model.job import Job, Slot
from dibs.model.requests import Settings, StartRate
from dibs_sqlite.transaction import QueueRows, Transaction

#: The key of the clock of the queue itself. Keys of jobs are never empty.
QUEUE_CLOCK = ""


def admitted(tx: Transaction, queue: QueueRows, limit: int) -> Iterator[Slot]:
    """Yield up to `limit` slots in the order of claims, and charge the clocks for each.

    The caller must claim each slot before it asks for the next: its run then counts for `per_key`.
    """
    for (key,) in queue.execute("opened_keys", now=tx.now).fetchall():
        queue.open_key(key)
    # At the limit, too, this files the jobs before the next one: `next_due` then knows when their keys open.
    while (
        queue_opening(tx, queue) is None and (slot := _first_with_room(tx, queue)) is not None and limit > 0
    ):
        assert slot.current is not None, "the query `due` returns waiting jobs"  # noqa: S101
        _charge(tx, queue, slot.current)
        limit -= 1
        yield slot
        key = slot.current.data.key
        if queue.settings.fair and key is not None and queue.scalar("waits_under_key", key=key):
            # A key without room is closed now: its next job may not be met in this claim.
            _has_room(tx, queue, slot.current)


def _first_with_room(tx: Transaction, queue: QueueRows) -> Slot | None:
    """Return the first due job whose key has room, and file those before it."""
    while due := queue.due(1):
        job = due[0].current
        assert job is not None, "the query `due` returns waiting jobs"  # noqa: S101
        if _has_room(tx, queue, job):
            return due[0]
        if not queue.settings.fair:
            queue.execute("file_job", id=job.id)
    return None


def _has_room(tx: Transaction, queue: QueueRows, job: Job) -> bool:
    """Return whether the key of the job has room. If it has none, close the key."""
    key, settings = job.data.key, queue.settings
    if key is None:
        return True
    runs = 0 if settings.per_key is None else queue.scalar("count_runs_of_key", key=key)
    if settings.shares.get(key) == 0 or (settings.per_key is not None and runs >= settings.per_key):
        queue.execute("close_key", key=key, opens_at=None)
        return False
    clock = _clock(queue, key)
    if settings.key_rate is not None and not rates.allows_start(clock, settings.key_rate, tx.now):
        queue.execute("close_key", key=key, opens_at=rates.next_start(clock, settings.key_rate))
        return False
    return True


def _clock(queue: QueueRows, key: str) -> int:
    return queue.scalar("clock", key=key) or 0


def _charge(tx: Transaction, queue: QueueRows, job: Job) -> None:
    settings = queue.settings
    clocks: list[tuple[str | None, StartRate | None]] = [
        (QUEUE_CLOCK, settings.rate),
        (job.data.key, settings.key_rate),
    ]
    for key, rate in clocks:
        if key is not None and rate is not None:
            queue.execute("save_clock", key=key, clock=rates.charge_start(_clock(queue, key), rate, tx.now))


def charge_cost(tx: Transaction, queue: QueueRows, job: Job, cost: int) -> None:
    """Move the clocks by the cost of a run under a lease. A claim may take more after one has moved back."""
    settings = queue.settings
    for key, rate in ((QUEUE_CLOCK, settings.rate), (job.data.key, settings.key_rate)):
        if key is None or rate is None:
            continue
        before = _clock(queue, key)
        after = rates.charge_cost(before, rate, cost, tx.now)
        queue.execute("save_clock", key=key, clock=after)
        if after < before:
            queue.note_work()
            queue.open_key(key)


def queue_opening(tx: Transaction, queue: QueueRows) -> int | None:
    """Return the time at which the clock of the queue allows the next start; None if it allows one now."""
    rate = queue.settings.rate
    if rate is None:
        return None
    clock = _clock(queue, QUEUE_CLOCK)
    return None if rates.allows_start(clock, rate, tx.now) else rates.next_start(clock, rate)


def next_due(tx: Transaction, queue: QueueRows) -> int | None:
    """Return the next time at which a job falls due, a key opens, or the queue may start a due job."""
    times = [queue.scalar(name, now=tx.now) for name in ("next_due", "next_opening")]
    opening = queue_opening(tx, queue)
    if opening is not None and queue.due(1):
        times.append(opening)
    return min((at for at in times if at is not None), default=None)


def has_opened(tx: Transaction, queue: QueueRows, after: int) -> bool:
    """Return whether time alone may let a claim take more jobs than at the time `after`, in ms."""
    if any(queue.scalar(name, after=after, now=tx.now) for name in ("became_due", "has_opened")):
        return True
    rate = queue.settings.rate
    if rate is None:
        return False
    return after < rates.next_start(_clock(queue, QUEUE_CLOCK), rate) <= tx.now and bool(queue.due(1))


def change_limits(tx: Transaction, queue: QueueRows, before: Settings, after: Settings) -> None:
    """Remove the clocks of a rate that changed, and open all closed keys if a limit of keys changed.

    A change of `fair` files all waiting jobs, or none, and begins all turns; one of a share begins its turn.
    """
    if before.rate != after.rate:
        queue.execute("delete_queue_clock")
    if before.key_rate != after.key_rate:
        queue.execute("delete_key_clocks")
    if before.fair != after.fair:
        queue.execute("file_all", filed=after.fair)
        queue.execute("open_keys")
        queue.execute("delete_turns")
        for (key,) in queue.execute("keys_in_order").fetchall():
            queue.execute("save_turn", key=key, place=tx.draw(), starts=0)
        return
    shares = rules.changed_shares(before, after)
    for key in shares:
        queue.execute("begin_turn", key=key)
    if shares or (before.per_key, before.key_rate) != (after.per_key, after.key_rate):
        for (key,) in queue.execute("closed_keys").fetchall():
            queue.open_key(key)
