"""A job that a worker claims at its `start_by` or later is cancelled, and its handler is not called."""

from __future__ import annotations

import logging
import time

import pytest

from dibs import Dibs, Ending
from dibs.model.overrides import Overrides
from dibs.model.requests import SettingsPatch
from dibs.worker import run
from tests.worker.execution.test_outcome import stall
from tests.worker.jobs import add, outcome, put, request


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
