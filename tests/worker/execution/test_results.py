"""Results that the serde of a handler cannot write."""

from __future__ import annotations

import pytest

from dibs.app import Dibs
from dibs.worker import run
from tests.worker.jobs import add, outcome, put


async def work(app: Dibs) -> None:
    await run(app, until="empty")


async def test_a_result_that_cannot_be_written_completes_the_job(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    """The work is done, so a failure would be wrong. One warning names the handler, also after many jobs."""
    add(app, "odd", lambda: {1, object()})
    for id in "abc":
        await put(app, "odd", id)
    await work(app)

    completed = await outcome(app, "odd", "a")
    assert ("completed", 1) == (completed.kind, completed.attempts)
    assert completed.result is not None
    assert b"(a result that cannot be stored: " in completed.result
    assert b"<object object at" in completed.result
    warnings = [one.getMessage() for one in caplog.records if "cannot write" in one.getMessage()]
    assert 1 == len(warnings)
    assert "odd returned set" in warnings[0]


async def test_a_result_that_cannot_be_written_fails_a_strict_handler_without_a_retry(app: Dibs) -> None:
    add(app, "q", lambda: {1, object()}, strict_results=True)
    await put(app, "q", "a")
    await work(app)

    failed = await outcome(app, "q", "a")
    assert ("failed", 1) == (failed.kind, failed.attempts)
    assert failed.error is not None
    assert "ResultNotSerializable" == failed.error.type
    assert "q returned set" in failed.error.message
