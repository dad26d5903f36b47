"""The results and exceptions of handlers, and the settlements of their jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.client.calls.handler import Handler
from dibs.client.options.serde import JSON
from dibs.errors import NotRunning, PermanentError, Retry
from dibs.model.job import ActiveRun, Error, Job, JobData
from dibs.model.overrides import Overrides
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
)
from dibs.model.results import SettleResult
from dibs.model.retry import Fixed, Immediate
from dibs.worker import WorkReport, run
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import counter_name, fallback_action
from tests.worker.jobs import add, arguments, current, event_kinds, outcome, put, request


async def work(app: Dibs) -> WorkReport:
    return await run(app, until="empty")


class Raiser:
    """A handler that raises the given exceptions one after the other, then returns."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_result_is_kept(app: Dibs, kind: str) -> None:
    async def double_async(n: int) -> int:
        return 2 * n

    def double(n: int) -> int:
        return 2 * n

    add(app, "q", double_async if kind == "async" else double)
    await put(app, "q", request("a", 1), request("b", 2))

    report = await work(app)

    assert [b"2", b"4"] == [(await outcome(app, "q", id)).result for id in "ab"]
    assert (2, 2) == (report.total("claimed"), report.total("completed"))


async def test_a_result_of_none_is_a_result(app: Dibs) -> None:
    add(app, "q", lambda: None)
    await put(app, "q", "a")
    await work(app)

    assert b"null" == (await outcome(app, "q", "a")).result


async def test_a_failing_job_is_retried_until_it_succeeds(app: Dibs) -> None:
    handler = Raiser(ValueError("one"), KeyError("two"))
    add(app, "q", handler)
    await put(app, "q", "a")

    report = await work(app)

    assert ["retried", "retried", "completed"] == await event_kinds(app, "q", "a")
    assert (3, 2, 1) == (report.total("claimed"), report.total("retried"), report.total("completed"))


async def test_a_limit_of_n_allows_n_retries(app: Dibs) -> None:
    handler = Raiser(*[ValueError("no")] * 9)
    add(app, "q", handler, max_retries=3)
    await put(app, "q", "a")
    await work(app)

    failed = await outcome(app, "q", "a")
    assert (4, "failed", 3, 4) == (handler.calls, failed.kind, failed.retries, failed.attempts)


async def test_a_job_may_override_its_handlers_limits(app: Dibs) -> None:
    handler = Raiser(*[ValueError("no")] * 9)
    add(app, "q", handler, max_retries=3)
    await put(app, "q", request("a", overrides=Overrides(max_retries=0)))
    await work(app)

    assert 1 == handler.calls


class Kinded(Exception):
    kind = "permanent"


@pytest.mark.parametrize("error", [PermanentError("no"), Kinded("no")])
async def test_a_permanent_error_is_not_retried(app: Dibs, error: Exception) -> None:
    handler = Raiser(error)
    add(app, "q", handler)
    await put(app, "q", "a")
    await work(app)

    assert ("failed", 1) == ((await outcome(app, "q", "a")).kind, handler.calls)


@pytest.mark.parametrize(
    ("settings", "error", "is_retried"),
    [
        ({"retry_on": OSError}, TimeoutError(), True),
        ({"retry_on": (OSError, KeyError)}, KeyError("k"), True),
        ({"retry_on": OSError}, ValueError("no"), False),
        ({"retry_on": ()}, OSError(), False),
        ({"no_retry_on": (ValueError,)}, UnicodeError("no"), False),
        ({"no_retry_on": ValueError}, OSError(), True),
        ({"retry_on": Exception, "no_retry_on": TimeoutError}, TimeoutError(), False),
        ({"retry_on": Exception}, SystemExit(3), False),
        ({"no_retry_on": Exception}, Retry(delay=0), True),
        ({"retry_on": Kinded}, Kinded("no"), False),
    ],
)
async def test_the_class_of_an_error_decides_whether_it_is_retried(
    app: Dibs, settings: Mapping[str, Any], error: BaseException, *, is_retried: bool
) -> None:
    handler = Raiser(error)
    add(app, "q", handler, backoff=Immediate(), **settings)
    await put(app, "q", "a")
    await work(app)

    assert is_retried == (handler.calls == 2)
    stored = (await outcome(app, "q", "a")).error
    assert (None if is_retried else "permanent") == (stored and stored.kind)


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_timeout_is_retried_whatever_the_classes_of_errors(app: Dibs, kind: str) -> None:
    async def wait() -> None:
        await asyncio.sleep(60)

    def block() -> None:
        while True:
            time.sleep(0.01)

    handler = wait if kind == "async" else block
    add(app, "q", handler, timeout=0.1, max_timeouts=1, backoff=Immediate(), retry_on=OSError)
    await put(app, "q", "a")
    await work(app)

    ended = await outcome(app, "q", "a")
    assert ("timeout", 1) == (ended.error and ended.error.kind, ended.timeouts)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["async", "def"])
async def test_an_exception_that_ends_programs_ends_only_the_run(
    app: Dibs, error: BaseException, kind: str
) -> None:
    handler = Raiser(error)

    async def async_handler() -> str:
        return handler()

    add(app, "q", handler if kind == "def" else async_handler)
    await put(app, "q", "a")
    await work(app)

    assert ["retried", "completed"] == await event_kinds(app, "q", "a")


AT = datetime(2100, 1, 1, tzinfo=UTC)


def with_retry_at(error: Exception) -> Exception:
    error.retry_at = AT.timestamp()  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("error", [Retry("busy", at=AT), with_retry_at(ConnectionError("busy"))], ids=repr)
async def test_an_error_may_set_the_time_of_the_retry(app: Dibs, error: Exception) -> None:
    """The attribute `retry_at` counts on any exception."""
    add(app, "q", Raiser(error), backoff=Fixed(3600))
    add(app, "stop", stop_worker)
    await put(app, "q", "a")
    await put(app, "stop", "s")
    await run(app)

    job = await current(app, "q", "a")
    assert (job.run_at, job.retries) == (round(AT.timestamp() * 1000), 1)
    assert job.error is not None
    assert "busy" == job.error.message


def stop_worker() -> None:
    """Stop the worker of this process by a signal."""
    os.kill(os.getpid(), signal.SIGTERM)


async def test_a_payload_that_cannot_be_read_is_an_error_of_the_run(app: Dibs) -> None:
    add(app, "q", lambda number: number, max_retries=0)
    await put(app, "q", "a")
    await work(app)

    error = (await outcome(app, "q", "a")).error
    assert error is not None
    assert "TypeError" == error.type


async def test_the_error_names_a_coroutine_that_a_def_handler_returned(app: Dibs) -> None:
    async def forgotten() -> None: ...

    def handler() -> object:
        return forgotten()

    add(app, "q", handler)
    await put(app, "q", "a")
    await work(app)

    error = (await outcome(app, "q", "a")).error
    assert error is not None
    assert "q returned a coroutine: was `await` forgotten?" in error.message


class BrokenBackoff:
    def delay(self, retry: int, jitter_factor: float = 1.0) -> int:
        raise ZeroDivisionError("no delay")


async def test_an_error_between_the_handler_and_the_settlement_fails_the_run(app: Dibs) -> None:
    add(app, "q", Raiser(ValueError("no")), backoff=BrokenBackoff())
    await put(app, "q", "a")
    await work(app)

    failed = await outcome(app, "q", "a")
    assert failed.error is not None
    assert ("failed", "ZeroDivisionError") == (failed.kind, failed.error.type)


async def test_a_result_that_is_too_large_fails_without_a_retry(app: Dibs) -> None:
    add(app, "q", lambda: "x" * 2_000_000)
    await put(app, "q", "a")

    report = await work(app)

    failed = await outcome(app, "q", "a")
    assert ("failed", 1, 1) == (failed.kind, failed.attempts, report.total("failed"))
    assert failed.error is not None
    assert "limit" in failed.error.message


async def test_a_job_that_stalled_too_often_ends_without_running(app: Dibs) -> None:
    handler = Raiser()
    add(app, "q", handler, max_stalls=0)
    await put(app, "q", "a")
    await stall(app, "q")

    await work(app)

    failed = await outcome(app, "q", "a")
    assert ("failed", 1, 0) == (failed.kind, failed.stalls, handler.calls)
    assert failed.error is not None
    assert "TooManyStalls" == failed.error.type


async def stall(app: Dibs, queue: str) -> None:
    """Claim a job under a lease that ends before it is renewed."""
    lease = (await app.storage.grant([queue], 200, "gone")).lease
    assert (await app.storage.claim(queue, lease, 1)).jobs
    while not await app.storage.reap(queue, 1):
        pass


async def test_a_failure_handler_gets_the_failed_job_and_has_its_own_retries(app: Dibs) -> None:
    seen: list[str] = []

    def on_failure(job_error: str) -> None:
        seen.append(job_error)
        if len(seen) < 3:
            raise ValueError("not yet")

    def origin(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert job.origin is not None
        return (f"{job.origin.id}: {job.origin.error.message}",), {}

    add(app, "q", Raiser(PermanentError("no")))
    add(app, "q!fail", on_failure)
    app.handlers["q!fail"] = attrs.evolve(app.handlers["q!fail"], decode_arguments=origin)
    await put(app, "q", "a")

    report = await run(app, queues=["q"], until="empty")

    assert ["a: no"] * 3 == seen
    assert (1, 2, 1) == (
        report.queue("q").failed,
        report.queue("q!fail").retried,
        report.queue("q!fail").completed,
    )


async def test_a_handler_knows_its_job(app: Dibs) -> None:
    seen: list[tuple[str, str, int, bool]] = []

    async def async_handler() -> None:
        job = current_job()
        await job.progress({"at": 1})
        seen.append((job.queue, job.id, job.attempt, job.cancelled))

    def handler() -> None:
        job = current_job()
        job.progress(2)
        seen.append((job.queue, job.id, job.attempt, job.cancelled))

    add(app, "async", async_handler)
    add(app, "def", handler)
    await put(app, "async", "a")
    await put(app, "def", "b")
    await work(app)

    assert [("async", "a", 1, False), ("def", "b", 1, False)] == sorted(seen)
    with pytest.raises(NotRunning):
        current_job()


@pytest.mark.parametrize(
    ("name", "how", "status"),
    [
        ("completed", Complete(), "done"),
        ("failed", Fail(error=Error(type="ValueError")), "done"),
        ("cancelled", Cancelled(), "done"),
        ("retried", RetryLater(), "returned"),
        ("timed_out", RetryLater(cause="timeout"), "returned"),
        ("stalled", RetryLater(cause="stall"), "returned"),
        ("released", Release(), "returned"),
        ("released", Release(delay=5), "returned"),
        ("handed_off", HandOff(), "handed_off"),
        ("cancelled", HandOff(), "cancelled"),
        ("cancelled", RetryLater(), "cancelled"),
        ("lost", Complete(), "lost"),
        ("lost", Fail(error=Error(type="ValueError")), "refused"),
    ],
)
def test_every_settlement_has_a_counter_in_the_report(name: str, how: SettleAction, status: str) -> None:
    assert name == counter_name(how, SettleResult(status))  # type: ignore[arg-type]


def test_a_refused_completion_or_retry_becomes_a_failure_and_a_refused_failure_has_no_fallback() -> None:
    handler = Handler(
        queue="q",
        function=print,
        is_async=False,
        serde=JSON,
        decode_arguments=arguments,
    )
    run = ActiveRun(fence=1, lease="lease", holder="me", claimed_at=0)
    job = Job(id="a", data=JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1, run=run)
    invocation = Invocation(handler, job, 0)
    failures = []
    for action in (RetryLater(run_at=-1), Complete(result=b"x"), Release(delay=-1)):
        invocation.action = action
        failures.append(fallback_action(invocation, "not allowed"))

    failure, *others = failures
    assert isinstance(failure, Fail)
    assert "CompletionRefused" == failure.error.type
    assert [failure, failure] == others
    invocation.action = failure
    assert fallback_action(invocation, "no") is None
