"""Jobs whose payload is for another version of their handler, as during a deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.app import Dibs
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, JobPatch
from dibs.model.run_outcome import MAX_MISMATCHES, MISMATCH_PAUSE
from dibs.testing import using
from tests.worker.jobs import current, outcome, wait_for_count
from tests.worker.supervisors import working

QUEUE = "mail.send"


def send(to: str) -> str:
    return to


def greet(to: str, word: str) -> str:
    return f"{word} {to}"


def number(to: int) -> str:
    return f"customer {to}"


def declare(app: Dibs, function: Callable[..., Any], **settings: Any) -> None:
    """Make `function` the handler of the queue, in place of an earlier one."""
    app.handlers.pop(QUEUE, None)
    app.task(queue=QUEUE, **settings)(function)


async def put_payload(app: Dibs, payload: bytes) -> None:
    """Enqueue a job as a program with another version of the handler does."""
    await app.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a", data=JobData(payload=payload)))])


ANOTHER_FORM = 'the payload is not of the form {"args": [...], "kwargs": {...}} of a task'
PAYLOADS: dict[str, tuple[Callable[..., Any], bytes, str]] = {
    "a parameter that this worker does not know": (
        send,
        b'{"args":["ada"],"kwargs":{"subject":"hi"}}',
        "the payload does not fit send: got an unexpected keyword argument 'subject'; it is send(to) here",
    ),
    "an argument that this worker does not know": (
        send,
        b'{"args":["ada","hi"]}',
        "the payload does not fit send: argument 2 has no parameter; it is send(to) here",
    ),
    "a parameter that the job does not have": (
        greet,
        b'{"args":["ada"]}',
        "the payload does not fit greet: missing a required argument: 'word'; it is greet(to, word) here",
    ),
    "another type": (
        number,
        b'{"args":["ada"]}',
        "argument 'to' of number: Expected `int`, got `str`",
    ),
    "another form": (
        send,
        b'["ada"]',
        f"{ANOTHER_FORM}: Expected `object`, got `array`",
    ),
}


@pytest.mark.parametrize(("function", "payload", "message"), PAYLOADS.values(), ids=PAYLOADS)
async def test_a_payload_that_does_not_fit_fails_after_ten_minutes_with_the_parameter_named(
    function: Callable[..., Any], payload: bytes, message: str
) -> None:
    """These retries have a limit of their own; the task itself allows no retry."""
    app = Dibs("memory:")
    declare(app, function, max_retries=0)
    async with using(app) as rehearsal:
        await put_payload(app, payload)
        before = rehearsal.now
        await rehearsal.run_until_empty()

        failed = await outcome(app, QUEUE, "a")
        assert failed.error is not None
        assert (MAX_MISMATCHES, "PayloadMismatch") == (failed.retries, failed.error.type)
        assert f"{message} (after 10 retries, one every 60 s)" == failed.error.message
        assert MAX_MISMATCHES * MISMATCH_PAUSE / 1000 == (rehearsal.now - before).total_seconds()


async def test_a_worker_with_the_code_that_fits_runs_the_job(any_app: Dibs) -> None:
    declare(any_app, send, max_retries=0)
    await put_payload(any_app, b'{"args":["ada","hi"]}')
    async with working(any_app, QUEUE, number=0, until="stopped"):
        await wait_for_count(any_app, QUEUE, "scheduled")
        job = await current(any_app, QUEUE, "a")
        declare(any_app, greet, max_retries=0)
    async with working(any_app, QUEUE, number=0) as worker:
        await any_app.storage.amend(QUEUE, "a", JobPatch(delay=0))
        await worker

    assert job.error is not None
    assert (1, "PayloadMismatch") == (job.retries, job.error.type)
    assert job.error.message.startswith("retry 1 of 10: the payload does not fit send: argument 2")
    assert b'"hi ada"' == (await outcome(any_app, QUEUE, "a")).result


async def test_the_limit_begins_again_after_a_run_of_the_handler() -> None:
    """The error of the handler replaces the one with the number of the retry."""
    app = Dibs("memory:")

    def busy(to: str, subject: str) -> None:
        raise ConnectionError

    busy.__qualname__ = "busy"
    async with using(app) as rehearsal:
        declare(app, send)
        await put_payload(app, b'{"args":["ada","hi"]}')
        await rehearsal.run_due()
        await rehearsal.advance(60)
        declare(app, busy)
        await rehearsal.run_due()
        declare(app, send)
        await rehearsal.advance(60)
        await rehearsal.run_due()

        job = await current(app, QUEUE, "a")
        assert job.error is not None
        assert job.error.message.startswith("retry 1 of 10: ")


async def test_an_update_that_resets_the_counts_resets_this_one() -> None:
    app = Dibs("memory:")
    declare(app, send)
    async with using(app) as rehearsal:
        for _ in range(2):
            await put_payload(app, b'{"args":["ada","hi"]}')
            await rehearsal.run_due()

        job = await current(app, QUEUE, "a")
        assert job.error is not None
        assert (1, True) == (job.retries, job.error.message.startswith("retry 1 of 10: "))
