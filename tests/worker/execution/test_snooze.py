"""Snooze: the job runs again at a time, and neither an attempt nor a retry is counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, Ending, Refused, Snooze
from dibs.client.calls.current_job import CurrentJob
from dibs.model.limits import LONGEST_TIME
from dibs.model.overrides import Overrides
from dibs.model.requests import SettingsPatch
from dibs.model.run_outcome import Snoozed
from dibs.worker import run
from dibs.worker.execution.exception_info import verdict_of_handler
from tests.worker.execution.test_outcome import stall, stop_worker
from tests.worker.jobs import add, current, event_kinds, outcome, put, request

TOMORROW = datetime(2200, 1, 2, tzinfo=UTC)


class Raises:
    """A handler that raises the given errors, one in each run, and then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def awaited(self) -> str:
        return self()


# -- the values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snooze", "verdict"),
    [
        (Snooze(delay=1.5), Snoozed(delay=1500)),
        (Snooze(delay="5m"), Snoozed(delay=300_000)),
        (Snooze("busy", delay=timedelta(minutes=1)), Snoozed(delay=60_000)),
        (Snooze(delay=0), Snoozed(delay=0)),
        (Snooze(delay=LONGEST_TIME // 1000), Snoozed(delay=LONGEST_TIME)),
        (Snooze(until=datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)), Snoozed(run_at=5000)),
        (Snooze(until=datetime(1969, 1, 1, tzinfo=UTC)), Snoozed(run_at=0)),
    ],
)
def test_a_snooze_sets_the_time_of_the_next_run(snooze: Snooze, verdict: Snoozed) -> None:
    assert verdict == verdict_of_handler(snooze)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "delay"),
        ({"delay": 1, "until": TOMORROW}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": LONGEST_TIME}, "delay"),
        ({"delay": 10**5000}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": float("inf")}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": [1]}, "delay"),
        ({"until": 5}, "until"),
        ({"until": "tomorrow"}, "until"),
        ({"until": TOMORROW.replace(tzinfo=None)}, "until"),
    ],
)
def test_a_bad_value_is_refused_when_the_snooze_is_made(values: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused, match=field) as caught:
        Snooze(**values)

    assert field == caught.value.field


# -- the runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_snoozed_run_leaves_no_count(app: Dibs, kind: str) -> None:
    handler = Raises(Snooze(delay=0), Snooze(until=datetime(2020, 1, 1, tzinfo=UTC)))
    add(app, "q", handler.awaited if kind == "async" else handler.__call__, max_retries=0, max_stalls=0)
    await put(app, "q", "a")
    report = await run(app, until="empty")

    done = await outcome(app, "q", "a")
    assert (b'"done"', 1, 0, 0) == (done.result, done.attempts, done.retries, done.stalls)
    assert (3, 2, 1, 0) == tuple(
        getattr(report.queue("q"), name) for name in ("claimed", "released", "completed", "retried")
    )
    assert ["released", "released", "completed"] == await event_kinds(app, "q", "a")


async def test_a_snoozed_job_waits_until_its_time(app: Dibs) -> None:
    add(app, "q", Raises(Snooze(delay=3600)).__call__)
    add(app, "r", Raises(Snooze(until=TOMORROW)).awaited)
    add(app, "stop", stop_worker)
    for queue in ("q", "r", "stop"):
        await put(app, queue, "a")
    before = time.time_ns() // 1_000_000
    await run(app)

    delayed, timed = await current(app, "q", "a"), await current(app, "r", "a")
    assert before + 3_600_000 <= delayed.run_at <= time.time_ns() // 1_000_000 + 3_600_000
    assert round(TOMORROW.timestamp() * 1000) == timed.run_at
    assert (0, 0, None) == (delayed.attempts, timed.attempts, delayed.error)


async def test_a_snooze_after_the_timeout_is_a_timeout(app: Dibs) -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise Snooze(delay=3600)

    add(app, "q", handler, timeout=20, max_timeouts=0)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert "failed" == (await outcome(app, "q", "a")).kind


async def test_a_bad_snooze_is_an_ordinary_error_of_the_handler(app: Dibs) -> None:
    def handler() -> None:
        raise Snooze(delay=-1)

    add(app, "q", handler, max_retries=1)
    await put(app, "q", "a")
    report = await run(app, until="empty")

    error = (await outcome(app, "q", "a")).error
    assert error is not None
    assert ("dibs.errors.Refused", 1) == (error.type, report.queue("q").retried)


async def test_middleware_sees_the_snooze(app: Dibs) -> None:
    seen: list[BaseException] = []

    @contextmanager
    def middleware(job: CurrentJob) -> Iterator[None]:
        try:
            yield
        except Snooze as snooze:
            seen.append(snooze)
            raise

    snooze = Snooze(delay=0)
    add(app, "q", Raises(snooze).__call__, middleware=middleware)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert [snooze] == seen


async def test_a_snooze_is_logged_with_the_time_of_the_next_run(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dibs.worker")
    add(app, "q", Raises(Snooze(until=TOMORROW)).__call__)
    add(app, "stop", stop_worker)
    for queue in ("q", "stop"):
        await put(app, queue, "a")
    await run(app)

    [line] = [record for record in caplog.records if "snoozed" in record.getMessage()]
    assert logging.INFO == line.levelno
    assert line.getMessage().startswith("q/a: snoozed; next run in ")
    assert line.getMessage().endswith(", at 2200-01-02 00:00:00 UTC")


# -- A job that a worker claims at its `start_by` or later is cancelled, and its handler is not called --


def in_ms(seconds: float) -> int:
    return round((time.time() + seconds) * 1000)


async def test_only_a_job_within_its_deadline_starts(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs.worker")
    seen: list[str] = []
    add(app, "q", seen.append)
    late, early = Overrides(start_by=in_ms(-1)), Overrides(start_by=in_ms(3600))
    await put(app, "q", request("late", "late", overrides=late), request("early", "early", overrides=early))
    await put(app, "q", request("free", "free", overrides=Overrides(timeout=5000)))
    report = await run(app, until="empty")

    assert ["early", "free"] == sorted(seen)
    kept = await outcome(app, "q", "late")
    assert kept.error is not None
    assert ("cancelled", "StartDeadlinePassed") == (kept.kind, kept.error.type)
    assert (1, 2) == (report.queue("q").cancelled, report.queue("q").completed)
    assert any(line.startswith("q/late: cancelled: claimed ") for line in caplog.messages)


async def test_the_hook_sees_the_reason(app: Dibs) -> None:
    seen: list[tuple[str, str]] = []

    def hook(ending: Ending) -> None:
        assert ending.error is not None
        seen.append((ending.kind, ending.error.type))

    add(app, "q", print, after=hook)
    await put(app, "q", request("a", overrides=Overrides(start_by=1)))
    await run(app, until="empty")

    assert [("cancelled", "StartDeadlinePassed")] == seen


async def test_a_cancelled_job_gets_no_fail_job(app: Dibs) -> None:
    add(app, "q", print)
    await app.storage.configure("q", SettingsPatch(fail_handler=True))
    await put(app, "q", request("a", overrides=Overrides(start_by=1)))
    await run(app, until="empty")

    assert 0 == (await app.storage.counts(["q!fail"]))["q!fail"].waiting


async def test_a_job_that_stalled_too_often_fails_even_after_its_deadline(app: Dibs) -> None:
    add(app, "q", print, max_stalls=0)
    await put(app, "q", request("a", overrides=Overrides(start_by=1)))
    await stall(app, "q")
    await run(app, until="empty")

    assert "failed" == (await outcome(app, "q", "a")).kind
