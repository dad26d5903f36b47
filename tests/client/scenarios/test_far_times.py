"""Times beyond the limits are refused by name before any write. Stored jobs with such times are listed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, Queue, Refused, Retention
from dibs.model.retry import Exponential, Fixed

FAR: dict[str, Any] = {
    "4e12": 4e12,
    "10**400": 10**400,
    "-10**400": -(10**400),
    "1e300": 1e300,
    "timedelta.max": timedelta.max,
    "1 ms above 100,000 days": timedelta(days=100_000, milliseconds=1),
}
#: The settings that take a duration, each with its name in the error.
CALLS: dict[str, tuple[str, Callable[[Queue, Any], Coroutine[Any, Any, Any]]]] = {
    "delay": ("delay", lambda q, far: q.enqueue(1, id="a", delay=far)),
    "delay in a batch": ("delay", lambda q, far: q.enqueue_many([q.bind(1, id="a", delay=far)])),
    "retention": ("retention", lambda q, far: q.enqueue(1, id="a", retention=far)),
    "retention of one end": (
        "retention",
        lambda q, far: q.enqueue(1, id="a", retention=Retention(failed=far)),
    ),
    "timeout": ("timeout", lambda q, far: q.enqueue(1, id="a", timeout=far)),
    "lease": ("lease", lambda q, far: q.enqueue(1, id="a", lease=far)),
    "wait": ("wait", lambda q, far: q.enqueue_and_wait(1, id="a", wait=far)),
    "amended delay": ("delay", lambda q, far: q.amend("known", delay=far)),
    "amended retention": ("retention", lambda q, far: q.amend("known", retention=far)),
    "retention of the queue": ("retention", lambda q, far: q.configure(retention=far)),
    "log_age": ("log_age", lambda q, far: q.configure(log_age=far)),
    "request_key_age": ("request_key_age", lambda q, far: q.configure(request_key_age=far)),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_far_duration_is_refused_before_any_write(any_app: Dibs, any_queue: Queue, name: str) -> None:
    field, call = CALLS[name]
    await any_queue.enqueue(1, id="known")
    before = await any_app.storage.export(any_queue.name)

    for far in FAR.values():
        with pytest.raises((Refused, ExceptionGroup)) as caught:
            await call(any_queue, far)
        refused = caught.value
        error = refused.exceptions[0] if isinstance(refused, ExceptionGroup) else refused
        assert isinstance(error, Refused)
        assert error.field is not None
        assert error.field.startswith(field)
        assert "100,000 days" in str(error) or "0 or more" in str(error)
    assert before == await any_app.storage.export(any_queue.name)


@pytest.mark.parametrize(
    "moment", [datetime.max.replace(tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)], ids=str
)
async def test_a_run_at_after_the_year_9998_is_refused(any_queue: Queue, moment: datetime) -> None:
    await any_queue.enqueue(1, id="known")
    for call in (any_queue.enqueue(1, run_at=moment), any_queue.amend("known", run_at=moment)):
        with pytest.raises(Refused, match="year 9998") as caught:
            await call
        assert "run_at" == caught.value.field
    assert 1 == (await any_queue.counts()).waiting


@pytest.mark.parametrize("backoff", [Fixed(4e12), Fixed(10**400), Exponential(first=1, cap=4e12)], ids=repr)
async def test_a_far_backoff_is_refused(any_queue: Queue, backoff: Fixed | Exponential) -> None:
    with pytest.raises(Refused) as caught:
        await any_queue.enqueue(1, backoff=backoff)

    assert caught.value.field is not None
    assert "backoff" in caught.value.field
    assert 0 == (await any_queue.counts()).waiting


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
