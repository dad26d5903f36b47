"""Follow-ups for the end of a run: those of a handler for its failure, and those of a hook."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from dibs import Dibs, Ending, PermanentError, Refused, current_job
from dibs.model.overrides import Overrides
from dibs.worker import run
from tests.worker.jobs import add, current, event_kinds, outcome, put, request


def then(app: Dibs, *ons: Any) -> None:
    for on in ons:
        current_job().then(app.queue(on).bind(on, id=on), on=on)


async def enqueued(app: Dibs) -> list[str]:
    """Return the names of the queues in which a follow-up waits."""
    counts = await app.storage.counts(["completed", "failed"])
    return [name for name, count in counts.items() if count.waiting]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_handler_may_set_follow_ups_for_each_end(app: Dibs, *, fails: bool) -> None:
    def handler() -> None:
        then(app, "completed", "failed")
        if fails:
            raise ValueError("no")

    add(app, "q", handler, max_retries=2)
    await put(app, "q", "a")
    await run(app, queues=["q"], until="empty")

    assert ["failed" if fails else "completed"] == await enqueued(app)


async def test_a_retry_has_no_follow_up(app: Dibs) -> None:
    async def handler() -> None:
        if current_job().attempt == 1:
            then(app, "failed")
            raise ValueError("no")

    add(app, "q", handler)
    await put(app, "q", "a")
    await run(app, queues=["q"], until="empty")

    assert [] == await enqueued(app)


async def test_a_permanent_error_a_timeout_and_a_result_that_cannot_be_encoded_are_failures(
    app: Dibs,
) -> None:
    async def permanent() -> None:
        then(app, "failed")
        raise PermanentError("no")

    async def late() -> None:
        then(app, "failed")
        await asyncio.sleep(60)

    async def unencodable() -> object:
        then(app, "failed")
        return object()

    for handler in (permanent, late, unencodable):
        name = handler.__name__
        add(app, name, handler, timeout=20, max_timeouts=0, strict_results=True)
        await put(app, name, "a")
        await run(app, queues=[name], until="empty")

        assert "failed" == (await outcome(app, name, "a")).kind
        assert ["failed"] == await enqueued(app), name
        await app.queue("failed").forget("failed")


async def test_another_end_than_completed_or_failed_is_refused(app: Dibs) -> None:
    add(app, "q", lambda: current_job().then(app.queue("next").bind(1), on="ended"), max_retries=0)  # type: ignore[arg-type]
    await put(app, "q", "a")
    await run(app, queues=["q"], until="empty")

    error = (await outcome(app, "q", "a")).error
    assert error is not None
    assert '\'ended\'; it must be "completed" or "failed"' in error.message


@pytest.mark.parametrize("fails", [True, False])
async def test_a_hook_may_add_a_follow_up_to_each_end(app: Dibs, *, fails: bool) -> None:
    def handler() -> None:
        then(app, "completed", "failed")
        if fails:
            raise PermanentError("no")

    def hook(ending: Ending) -> None:
        ending.then(app.queue("ended").bind(ending.kind, id="a"))

    add(app, "q", handler, after=hook)
    await put(app, "q", "a")
    await run(app, queues=["q"], until="empty")

    kind = "failed" if fails else "completed"
    assert [kind] == await enqueued(app)
    job = await app.queue("ended").get("a")
    assert job is not None
    assert kind == job.data


async def test_the_follow_up_of_a_cancelled_run_is_refused(app: Dibs) -> None:
    errors: list[Refused] = []

    def hook(ending: Ending) -> None:
        try:
            ending.then(app.queue("next").bind(1))
        except Refused as refused:
            errors.append(refused)

    add(app, "q", print, after=hook)
    await put(app, "q", request("a", overrides=Overrides(start_by=1)))
    await run(app, queues=["q"], until="empty")

    assert ["then"] == [error.field for error in errors]


# -- A handler hands its run off: the job stays active until any process ends it with `finish` -------


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
