"""The call of a handler by an executor, with serdes, middleware and threads that break."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import pytest

from dibs.app import Dibs
from dibs.client.options.serde import JSON
from dibs.worker import run
from dibs.worker.execution.executor import HandlerThreads
from tests.worker.jobs import add, event_kinds, outcome, put


class Serde:
    """A serde whose `encode` returns or raises `encoded`."""

    name = "strange"

    def __init__(self, encoded: Any) -> None:
        self.encoded = encoded

    def encode(self, value: Any) -> Any:
        if isinstance(self.encoded, BaseException):
            raise self.encoded
        return self.encoded

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return JSON.decode(raw, type)


@pytest.mark.parametrize("kind", ["async", "def"])
@pytest.mark.parametrize(
    ("encoded", "reason"),
    [(SystemExit(1), "1"), (KeyboardInterrupt(), "KeyboardInterrupt"), ("text", "returned str, not bytes")],
)
async def test_a_serde_that_breaks_fails_the_run(app: Dibs, kind: str, encoded: Any, reason: str) -> None:
    async def async_handler() -> None: ...

    add(app, "q", async_handler if kind == "async" else lambda: None)
    app.handlers["q"] = attrs.evolve(app.handlers["q"], serde=Serde(encoded))
    await put(app, "q", "a")
    await run(app, until="empty")

    error = (await outcome(app, "q", "a")).error
    assert error is not None
    assert ("ResultNotSerializable", True) == (error.type, error.message.endswith(reason))


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_middleware_may_suppress_the_error_of_a_run(app: Dibs, kind: str) -> None:
    def handler() -> None:
        raise ValueError

    async def async_handler() -> None:
        raise ValueError

    add(app, "q", async_handler if kind == "async" else handler)
    app.middleware(run=lambda _: suppress(ValueError))
    await put(app, "q", "a")
    await run(app, until="empty")

    assert b"null" == (await outcome(app, "q", "a")).result


async def test_a_thread_that_cannot_be_started_is_an_error_of_the_run(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = HandlerThreads.run

    def refuse(self: HandlerThreads[Any], work: Any) -> None:
        monkeypatch.setattr(HandlerThreads, "run", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(HandlerThreads, "run", refuse)
    add(app, "q", lambda: 7)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert ["retried", "completed"] == await event_kinds(app, "q", "a")


# -- The threads of `def` handlers -------------------------------------------------------------------


T = TypeVar("T")


async def results(queue: asyncio.Queue[T], number: int) -> list[T]:
    async with asyncio.timeout(10):
        return [await queue.get() for _ in range(number)]


async def test_what_threads_return_is_collected_on_the_loop() -> None:
    seen, queue = set[int](), asyncio.Queue[int]()

    def collect(result: int) -> None:
        seen.add(threading.get_ident())
        queue.put_nowait(result)

    threads = HandlerThreads(asyncio.get_running_loop(), collect)
    for number in range(1000):
        threads.run(lambda number=number: number)  # type: ignore[misc]
    found = await results(queue, 1000)
    threads.close()

    assert list(range(1000)) == sorted(found)
    assert {threading.get_ident()} == seen


async def test_there_are_as_many_threads_as_are_busy_at_once() -> None:
    queue = asyncio.Queue[int]()
    threads = HandlerThreads(asyncio.get_running_loop(), queue.put_nowait)
    together = threading.Barrier(50)
    for _ in range(50):
        threads.run(lambda: together.wait(10))
    found = await results(queue, 50)
    threads.close()

    assert list(range(50)) == sorted(found)


async def test_threads_are_used_again() -> None:
    queue = asyncio.Queue[str]()
    threads = HandlerThreads(asyncio.get_running_loop(), queue.put_nowait)
    names = set[str]()
    for _ in range(20):
        threads.run(lambda: threading.current_thread().name)
        names |= set(await results(queue, 1))
    threads.close()

    assert 1 == len(names)


@pytest.mark.parametrize("busy", [False, True])
async def test_no_thread_stays_after_its_work(*, busy: bool) -> None:
    queue = asyncio.Queue[threading.Thread]()
    threads = HandlerThreads(asyncio.get_running_loop(), queue.put_nowait)
    go = threading.Event()

    def work() -> threading.Thread:
        go.wait(10)
        return threading.current_thread()

    threads.run(work)
    if busy:
        threads.close()
    go.set()
    [thread] = await results(queue, 1)
    if not busy:
        threads.close()
    await asyncio.to_thread(thread.join, 10)

    assert not thread.is_alive()


# -- Results that the serde of a handler cannot write ------------------------------------------------


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
