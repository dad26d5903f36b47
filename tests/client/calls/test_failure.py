"""The arguments of the handlers of queues and of failure handlers."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import pytest

from dibs import BadHandler, Dibs, Failure, PermanentError, Task
from dibs.client.calls.failure import MAX_DEPTH, error_from_exception
from dibs.client.task import TaskDecorator
from dibs.model.error_text import _error_size
from dibs.model.job import Error, Job, JobData
from dibs.model.limits import LIMITS
from dibs.model.requests import SettingsPatch
from tests.client import handlers
from tests.client.handlers import Crop
from tests.client.manual_claims import arguments, claimed, enqueue_unchecked


async def test_a_queues_handler_gets_data_of_its_type_and_the_job(app: Dibs) -> None:
    queue = app.queue("q")
    queue.handler(timeout=5)(handlers.send)
    await queue.enqueue({"left": 1})

    async with claimed(queue) as claim:
        (data, job), named = arguments(app, app.handlers["q"], claim)
        assert (data, job.id, named) == (Crop(1), claim.id, {})


async def test_a_queues_handler_may_take_the_data_alone(app: Dibs) -> None:
    queue = app.queue("q")
    queue.handler(handlers.take)
    await queue.enqueue([1])

    async with claimed(queue) as claim:
        assert arguments(app, app.handlers["q"], claim) == (([1],), {})


@pytest.mark.parametrize("function", [handlers.take_nothing, handlers.take_three])
def test_a_queues_handler_takes_data_and_job(app: Dibs, function: Any) -> None:
    with pytest.raises(BadHandler, match="data"):
        app.queue("q").handler()(function)


async def test_data_that_does_not_fit_fails_for_good(app: Dibs) -> None:
    queue = app.queue("q")
    queue.handler()(handlers.send)
    await enqueue_unchecked(queue, "no crop")

    async with claimed(queue) as claim:
        with pytest.raises(PermanentError):
            arguments(app, app.handlers["q"], claim)


def test_a_failure_handler_has_limits_of_its_own(app: Dibs) -> None:
    task = app.task(timeout=5)(handlers.thumbnail)
    task.on_failure(max_retries=99)(handlers.alert)

    name = task.queue.name
    assert app.handlers[f"{name}!fail"].limits.max_retries == 99
    assert app.handlers[name].limits.timeout == 5000


def test_the_retries_of_a_failure_handler_last_at_least_24_hours(app: Dibs) -> None:
    app.queue("q").on_failure(handlers.alert)

    limits = app.handlers["q!fail"].limits
    assert limits.max_retries is not None
    assert limits.max_timeouts is not None
    for retries in (limits.max_retries, limits.max_timeouts):
        assert 86_400_000 <= sum(limits.backoff.delay(n) for n in range(1, retries + 1))


def test_a_failure_handler_declares_the_setting_of_the_queue_it_is_for(app: Dibs) -> None:
    task = app.task(queue="q", max_active=5)(handlers.refresh)
    task.on_failure(max_active=2)(handlers.alert)
    app.queue("r").on_failure(handlers.alert)

    declared = {"q": SettingsPatch(max_active=5, fail_handler=True), "q!fail": SettingsPatch(max_active=2)}
    assert declared == app.handlers.declared_settings(["q", "q!fail"])
    assert declared == app.handlers.declared_settings(["q!fail", "q"])
    assert {"r": SettingsPatch(fail_handler=True)} == app.handlers.declared_settings(["r!fail"])


async def failure(app: Dibs, task: Task[..., Any], function: Any) -> Any:
    task.on_failure(function)
    await app.storage.configure(task.queue.name, SettingsPatch(fail_handler=True))
    async with claimed(task.queue) as claim:
        await claim.fail(ValueError("no such file"))
    name = f"{task.queue.name}!fail"
    async with claimed(app.queue(name)) as claim:
        return arguments(app, app.handlers[name], claim)[0]


async def test_a_failure_tells_the_whole_story(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    await task.options(id="a").enqueue("a.png", width=5)

    (failed,) = await failure(app, task, handlers.alert)

    assert isinstance(failed, Failure)
    assert (failed.queue, failed.id, failed.args, failed.kwargs) == (task.queue.name, "a", ("a.png", 5), {})
    assert (failed.error.type, failed.error.message) == ("ValueError", "no such file")
    assert (failed.attempts, failed.retries, failed.stalls, failed.timeouts) == (1, 0, 0, 0)
    assert failed.enqueued_at.tzinfo is not None


async def test_a_failure_has_the_time_and_the_attributes_of_the_failed_job(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    at = datetime(2024, 5, 17, 12, tzinfo=UTC)
    await task.options(id="a", run_at=at, attributes={"order": 7, "to": ["ä", None]}).enqueue("a.png")

    (failed,) = await failure(app, task, handlers.alert)

    assert (failed.run_at, failed.attributes, failed.kind) == (at, {"order": 7, "to": ["ä", None]}, "error")


async def test_a_failed_job_in_a_fail_queue_can_be_retried_with_its_attributes(app: Dibs) -> None:
    """The origin of the fail job is kept in its outcome, and retry_failed restores it."""
    task = app.task(handlers.thumbnail)
    await task.options(id="a", attributes={"order": 7}).enqueue("a.png")
    task.on_failure(handlers.alert)
    await app.storage.configure(task.queue.name, SettingsPatch(fail_handler=True))
    async with claimed(task.queue) as claim:
        await claim.fail("no such file")
    fail_queue = app.queue(f"{task.queue.name}!fail")
    async with claimed(fail_queue) as claim:
        id = claim.id
        await claim.fail("the alert failed, too")
    await fail_queue.retry_failed(id)

    async with claimed(fail_queue) as claim:
        (failed,), _ = arguments(app, app.handlers[fail_queue.name], claim)
    assert failed.attributes == {"order": 7}


@pytest.mark.parametrize("kind", ["error", "permanent", "timeout"])
async def test_a_failure_says_why_the_last_run_ended(
    any_app: Dibs, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(handlers, "FAILURES", [])
    queue = any_app.queue(f"ends-{kind}-{os.urandom(6).hex()}")
    queue.handler(timeout=0.05, max_retries=0, max_timeouts=0)(handlers.end_as)
    queue.on_failure(handlers.note_failure)
    await queue.enqueue(kind)

    await any_app.work(until="empty")

    assert [failed.kind for failed in handlers.FAILURES] == [kind]


async def test_a_failure_handler_may_take_the_job_too(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    await task.enqueue("a.png")

    failed, job = await failure(app, task, handlers.alert_with)

    assert job.queue == f"{failed.queue}!fail"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"args": [1, 2, 3]}, {"args": (1, 2, 3)}),
        ("no call at all", {"data": "no call at all"}),
    ],
)
async def test_a_payload_that_does_not_fit_still_reaches_the_failure_handler(
    app: Dibs, data: Any, expected: dict[str, Any]
) -> None:
    task = app.task(handlers.thumbnail)
    await enqueue_unchecked(task.queue, data)

    (failed,) = await failure(app, task, handlers.alert)

    assert {name: getattr(failed, name) for name in expected} == expected


def test_only_fail_jobs_have_a_story(app: Dibs) -> None:
    app.task(handlers.thumbnail).on_failure(handlers.alert)
    handler = app.handlers["tests.client.handlers.thumbnail!fail"]
    job = Job(id="a", data=JobData(payload=b"{}"), run_at=0, enqueued_at=0, seq=1, first=1, revision=1)

    with pytest.raises(PermanentError):
        handler.decode_arguments(job)


# -- The stored form of exceptions -------------------------------------------------------------------


def caught(raising: Callable[[], object]) -> Error:
    try:
        raising()
    except BaseException as error:  # noqa: BLE001 - the test is about any exception
        return error_from_exception(error)
    raise AssertionError("it did not raise")


def deep(levels: int) -> None:
    try:
        deep(levels - 1) if levels else int("no number")
    except ValueError as error:
        raise ValueError(levels) from error


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raise_mute() -> None:
    raise Mute


def raise_group() -> None:
    raise ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [KeyError("b")])])


def raise_loop() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def raise_from_none() -> None:
    try:
        int("hidden")
    except ValueError:
        raise KeyError("shown") from None


def raise_nasty() -> None:
    raise ValueError("a\0b \ud800" + "x" * 40_000)


def test_type_message_traceback_and_cause_are_kept() -> None:
    error = caught(lambda: deep(0))

    assert (error.type, error.message) == ("ValueError", "0")
    assert "in deep" in error.traceback
    assert error.cause is not None
    assert error.cause.message.startswith("invalid literal")


def test_our_own_errors_carry_their_module() -> None:
    assert caught(raise_mute).type == f"{__name__}.Mute"


def boom(*_: object) -> Any:
    raise ValueError


def frames(*makers: Any) -> TracebackType:
    """Return a traceback with frames of the functions `makers`, in this order."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - only its traceback counts
        TaskDecorator(boom)(boom)
    made: dict[str, TracebackType] = {}
    trace: TracebackType | None = caught.tb
    while trace is not None:
        made[trace.tb_frame.f_code.co_name] = trace
        trace = trace.tb_next
    chosen = [made[name] for name in makers]
    for one, following in zip(chosen, [*chosen[1:], None], strict=True):
        one.tb_next = following
    return chosen[0]


def test_the_traceback_begins_where_our_code_ends() -> None:
    """The frames of the worker above the handler do not help to find the failure."""
    stored = error_from_exception(ValueError().with_traceback(frames("__call__", "boom")))

    assert stored.traceback.splitlines()[0].endswith("in boom")


def test_what_is_all_ours_is_told_whole() -> None:
    stored = error_from_exception(ValueError().with_traceback(frames("__call__")))

    assert "task.py" in stored.traceback


def test_a_chain_of_causes_ends() -> None:
    cause: Error | None = caught(lambda: deep(50))
    length = 0
    while cause is not None:
        cause, length = cause.cause, length + 1

    assert length <= MAX_DEPTH
    assert caught(raise_loop).cause is not None


def test_a_context_that_was_hidden_stays_hidden() -> None:
    assert caught(raise_from_none).cause is None


def test_a_group_names_its_members() -> None:
    assert "- ValueError: a" in caught(raise_group).message
    assert "KeyError: 'b'" in caught(raise_group).message


def test_a_message_that_cannot_be_read_hides_nothing() -> None:
    assert caught(raise_mute).message == "(no message: its __str__ raised RuntimeError)"


def test_the_text_is_cut_to_what_may_be_stored() -> None:
    """Contract 4: the error text is cut to 16 KiB, with a mark."""
    error = caught(raise_nasty)

    assert _error_size(error) <= LIMITS.error
    assert "cut by dibs" in error.message
    assert "\0" not in error.message
    assert error.message.encode()
