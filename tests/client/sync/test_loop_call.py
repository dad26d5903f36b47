"""Blocking calls on an event loop that ends, is stopped or was closed before they are done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dibs import Dibs, DibsError, NotRunning, OutcomeUnknown
from dibs.client.sync import background_loop
from dibs.client.sync.background_loop import LoopCall


def in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Start a function on a thread. Return a function that waits for its result, or its error of dibs."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function())
        except DibsError as error:
            results.append(error)

    thread = threading.Thread(target=call)
    thread.start()

    def wait() -> Any:
        thread.join(30)
        return results[0]

    return wait


@pytest.mark.parametrize(
    ("form", "error"), [("await queue.counts(...)", NotRunning), ("await queue.enqueue(...)", OutcomeUnknown)]
)
def test_the_error_of_a_call_whose_loop_ends(form: str, error: type[DibsError]) -> None:
    async def main() -> Callable[[], Any]:
        await app.open()
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def endless() -> None:
            started.set()
            await loop.create_future()

        wait = in_thread(lambda: background_loop.run(app._storage_handle, form, endless()))
        await started.wait()
        return wait

    app = Dibs("memory:")
    told = asyncio.run(main())()

    assert error is type(told)
    assert f"ended during {form}" in str(told)


def test_an_enqueue_whose_loop_ends_is_told_the_truth(any_url: str) -> None:
    app = Dibs(any_url)

    async def main(turns: int) -> Callable[[], Any]:
        await app.open()
        called = threading.Event()

        def enqueue() -> Any:
            called.set()
            return app.sync.queue("q").enqueue(1, id=f"{turns}").verdict

        wait = in_thread(enqueue)
        called.wait(10)
        for _ in range(turns):
            await asyncio.sleep(0)
        return wait

    told = {f"{turns}": asyncio.run(main(turns))() for turns in range(15)}
    stored = {one.id for one in app.sync.queue("q").list("waiting")}
    app.sync.close()

    assert {id for id, answer in told.items() if answer == "queued"} <= stored
    assert all(isinstance(told[id], OutcomeUnknown) for id in told if told[id] != "queued")


def test_a_call_that_a_stopped_loop_never_started_runs_on_the_background_loop() -> None:
    stopped = asyncio.new_event_loop()
    call = LoopCall("await it", asyncio.sleep(0, "done"))
    call.start(stopped)

    assert not call.is_done()
    call.start(background_loop.BACKGROUND.loop())
    assert call.is_done()
    assert "done" == call.future.result()
    stopped.close()


def test_a_call_on_a_closed_loop_raises_at_once() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    coroutine = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        LoopCall("await it", coroutine).start(closed)
    coroutine.close()
