"""Tasks: declared functions, their options, and their calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dibs import (
    BadHandler,
    BatchRefused,
    Dibs,
    DuplicateHandler,
    Ending,
    JobFailed,
    Refused,
    Reject,
    UnknownTask,
    WaitTimeout,
)
from dibs.client.options.job_settings import WAIT_SLACK_MS
from tests.client import handlers
from tests.client.handlers import Crop
from tests.client.manual_claims import arguments, claimed, enqueue_unchecked


def test_a_task_still_is_its_function(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)

    assert task("a", width=3) == "a@3"
    assert (getattr(task, "__name__", ""), task.__module__) == ("thumbnail", handlers.__name__)


async def test_an_async_task_is_awaited(app: Dibs) -> None:
    assert await app.task(handlers.refresh)(3) == [0, 1, 2]


def test_a_task_is_named_by_module_and_function_unless_it_says_else(app: Dibs) -> None:
    app.task(handlers.thumbnail)
    app.task(queue="mine", timeout=5)(handlers.refresh)

    assert set(app.handlers) == {"tests.client.handlers.thumbnail", "mine"}
    assert app.get_task("mine").queue.name == "mine"
    with pytest.raises(UnknownTask, match="mine"):
        app.get_task("yours")


def test_a_declaration_says_what_a_worker_needs(app: Dibs) -> None:
    app.task(
        timeout=1.5, max_retries=None, max_stalls=0, size=5, queue_priority=7, executor="process", queue="q"
    )(handlers.thumbnail)

    handler = app.handlers["q"]
    assert (handler.function, handler.is_async) == (handlers.thumbnail, False)
    assert (handler.limits.timeout, handler.limits.max_retries, handler.limits.max_stalls) == (1500, None, 0)
    assert (handler.limits.max_timeouts, handler.size, handler.queue_priority) == (3, 5, 7)
    assert handler.executor == "process"


@pytest.mark.parametrize(
    ("function", "executor", "runs"),
    [(handlers.refresh, "auto", 100), (handlers.refresh, "process", 10), (handlers.thumbnail, "auto", 10)],
)
def test_runs_on_the_event_loop_are_small(app: Dibs, function: Any, executor: Any, runs: int) -> None:
    app.task(queue="q", executor=executor)(function)
    assert app.handlers["q"].runs_per_process == runs


def test_a_queue_has_one_handler(app: Dibs) -> None:
    app.task(queue="q")(handlers.thumbnail)

    with pytest.raises(DuplicateHandler, match="thumbnail already"):
        app.task(queue="q")(handlers.refresh)
    with pytest.raises(DuplicateHandler):
        app.queue("q").handler()(handlers.take)


def test_what_a_worker_could_not_import_is_no_task(app: Dibs) -> None:
    with pytest.raises(BadHandler, match="lambda"):
        app.task(lambda: 1)


async def test_the_arguments_arrive_as_they_were(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    await task.enqueue("a.png", width=100)

    async with claimed(task.queue) as claim:
        assert arguments(app, app.handlers[task.queue.name], claim) == (("a.png", 100), {})


async def test_settings_are_kept_apart_from_arguments(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    ticket = await task.options(id="a", priority=5, on_conflict=Reject()).enqueue("a.png")

    status = await task.queue.get("a")
    assert ticket.id == "a"
    assert status is not None
    assert status.priority == 5
    with pytest.raises(Refused, match="prio"):
        task.options(prio=5)  # type: ignore[call-arg]


async def test_many_calls_are_bound_and_enqueued_as_one(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)

    jobs = [task.bind("a"), task.options(id="b").bind("b")]
    tickets = await task.enqueue_many(job for job in jobs)

    assert [ticket.verdict for ticket in tickets] == ["queued", "queued"]
    assert tickets[1].id == "b"


async def test_all_bad_calls_of_a_batch_are_named(app: Dibs) -> None:
    task: Any = app.task(handlers.thumbnail)

    with pytest.raises(BatchRefused) as refused:
        await task.enqueue_many(task.bind(*args) for args in [(), ("a",), (1, 2, 3)])
    assert [getattr(error, "index", None) for error in refused.value.exceptions] == [0, 2]


async def test_run_is_request_and_response(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    running = asyncio.create_task(task.options(wait=30).enqueue_and_wait("a.png"))
    async with task.queue.receive(max_jobs=1, wait=30) as claims:
        await (await anext(claims)).complete("link")

    assert await running == "link"


async def test_run_has_the_result_of_what_was_done_already(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    await task.options(id="a").enqueue("a")
    async with claimed(task.queue) as claim:
        await claim.complete("before")

    assert await task.options(id="a", on_conflict=Reject(), wait=0).enqueue_and_wait("a") == "before"


async def test_run_raises_how_the_job_ended(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    running = asyncio.create_task(task.enqueue_and_wait("a.png"))
    async with task.queue.receive(max_jobs=1, wait=30) as claims:
        await (await anext(claims)).fail(ValueError("broken"))

    with pytest.raises(JobFailed, match="broken"):
        await running


async def test_run_lets_the_outcome_outlive_the_wait_from_the_start(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An amend would be too late: the job may end before it arrives."""

    async def too_late(*_args: Any) -> Any:
        raise AssertionError

    task = app.task(handlers.thumbnail)
    monkeypatch.setattr(app.storage, "amend", too_late)
    with pytest.raises(WaitTimeout):
        await task.options(id="a", wait=0, retention=1).enqueue_and_wait("a")

    slot = (await app.storage.get(task.queue.name, ["a"]))[0]
    assert slot.current is not None
    assert slot.current.enqueues == 1
    assert slot.current.data.retention is not None
    assert slot.current.data.retention.completed == WAIT_SLACK_MS


async def test_a_result_comes_back_as_the_return_type(app: Dibs) -> None:
    task = app.task(handlers.typed)
    ticket = await enqueue_unchecked(task.queue, {"args": []})
    async with claimed(task.queue) as claim:
        await claim.complete(Crop(1, 2))

    untyped: Any = await task.queue.ticket(ticket.id, ticket.revision).result(0)
    assert {"left": 1, "top": 2} == untyped
    assert Crop(1, 2) == await task.ticket(ticket.id, ticket.revision).result(0)


def shorten(ending: Ending) -> None:
    ending.result = "short"


def test_a_task_has_one_hook_after_an_end(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    assert task.after(shorten) is shorten

    assert app.handlers[task.queue.name].after is shorten
    with pytest.raises(BadHandler):
        task.after(shorten)
