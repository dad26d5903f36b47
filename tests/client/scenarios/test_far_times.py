"""Times beyond the limits are refused by name before any write. Stored jobs with such times are listed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dibs import Queue


async def test_the_longest_times_are_accepted_and_shown(any_queue: Queue) -> None:
    days = timedelta(days=100_000)
    latest = datetime(9998, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    await any_queue.enqueue(1, id="delayed", delay=days, retention=days, timeout=days, lease=days)
    await any_queue.enqueue(1, id="latest", run_at=latest)
    await any_queue.configure(retention=days, log_age=days, request_key_age=days)
    due = {status.id: status.run_at async for status in any_queue.list("scheduled")}

    assert latest == due["latest"]
    assert due["delayed"] is not None
    assert due["delayed"] > datetime(2290, 1, 1, tzinfo=UTC)
