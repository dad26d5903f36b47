"""A handler hands its run off: the job stays active until any process ends it with `finish`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from dibs import Dibs, Refused, current_job
from dibs.worker import run
from tests.worker.jobs import add, current, event_kinds, outcome, put, request


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_handed_off_job_is_ended_elsewhere(app: Dibs, kind: str) -> None:
    revisions: list[int] = []

    def handler() -> Any:
        revisions.append(current_job().hand_off())
        return object()  # ignored, so it need not be encodable

    async def async_handler() -> Any:
        return handler()

    add(app, "q", async_handler if kind == "async" else handler)
    await put(app, "q", "a")
    report = await run(app, until="empty")

    job = await current(app, "q", "a")
    assert job.run is not None
    assert (None, [job.revision]) == (job.run.lease, revisions)
    assert (1, 0, 0) == tuple(
        getattr(report.queue("q"), name) for name in ("handed_off", "released", "running")
    )
    assert "done" == await app.queue("q").finish("a", revisions[0], {"by": "webhook"})
    assert b'{"by":"webhook"}' == (await outcome(app, "q", "a")).result
    assert ["completed"] == await event_kinds(app, "q", "a")


async def test_a_handler_that_raises_after_hand_off_is_retried(app: Dibs) -> None:
    def handler() -> str:
        if current_job().attempt == 1:
            current_job().hand_off()
            raise ValueError("no")
        return "second"

    add(app, "q", handler)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert b'"second"' == (await outcome(app, "q", "a")).result


async def test_a_hand_off_and_a_follow_up_of_the_completion_exclude_each_other(app: Dibs) -> None:
    errors: list[str] = []

    def handler(first: str) -> None:
        job, next_job = current_job(), app.queue("next").bind(1)
        calls: dict[str, Callable[[], Any]] = {"hand_off": job.hand_off, "then": lambda: job.then(next_job)}
        calls.pop(first)()
        for call in calls.values():
            with pytest.raises(Refused) as refused:
                call()
            errors.append(refused.value.field)

    add(app, "q", handler)
    for first in ("hand_off", "then"):
        await put(app, "q", request(first, first))
    await run(app, until="empty")

    assert ["then", "then"] == errors
    assert 1 == (await app.storage.counts(["next"]))["next"].waiting


async def test_a_hand_off_is_logged(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs.worker")
    add(app, "q", lambda: current_job().hand_off())
    await put(app, "q", "a")
    await run(app, until="empty")

    assert "q/a: handed off" in caplog.messages
