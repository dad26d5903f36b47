"""The warning about code that blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from dibs.app import Dibs
from dibs.client.calls.handler import Ending
from dibs.worker import run
from dibs.worker.execution import executor
from tests.worker.jobs import add, put


class Warnings(logging.Handler):
    """A logging handler that keeps the warnings of the watchdog."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.warned = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "blocked the event loop" in record.getMessage():
            self.texts.append(record.getMessage())
            self.warned.set()

    def block_loop(self) -> None:
        """Block this thread, as time.sleep does, until the watchdog warns."""
        assert self.warned.wait(60)


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    found = Warnings()
    logging.getLogger("dibs.worker").addHandler(found)
    yield found
    logging.getLogger("dibs.worker").removeHandler(found)


@pytest.mark.long
async def test_a_handler_that_blocks_the_loop_is_named_once(app: Dibs, warnings: Warnings) -> None:
    async def handler() -> None:
        warnings.block_loop()
        if len(seen) == 1:  # a second, when a warning would come again
            time.sleep(executor.ASK_EVERY + executor.PATIENCE + 0.2)  # noqa: ASYNC251 - the case
        seen.append(1)

    seen: list[int] = []
    add(app, "q", handler, size=100)
    await put(app, "q", "a", "b")
    await run(app, until="empty")

    [text] = warnings.texts
    assert text.startswith("q: the handler has blocked the event loop for 0.8 s (")
    assert f"{__file__}:" in text


@pytest.mark.long
async def test_a_handler_that_blocks_the_loop_after_another_run_is_named(
    app: Dibs, warnings: Warnings
) -> None:
    """The loop continues the second run at once after the first, and does not answer between them."""
    long_waits, short_runs = asyncio.Event(), asyncio.Event()

    async def short() -> None:
        await long_waits.wait()
        short_runs.set()
        time.sleep(executor.ASK_EVERY + executor.PATIENCE / 2 + 0.1)  # noqa: ASYNC251 - the case

    async def long() -> None:
        long_waits.set()
        await short_runs.wait()
        warnings.block_loop()

    add(app, "short", short)
    add(app, "long", long, max_retries=0)
    await put(app, "short", "a")
    await put(app, "long", "a")
    await run(app, until="empty")

    assert ["long: the handler"] == [text.partition(" has blocked")[0] for text in warnings.texts]


async def test_a_hook_that_blocks_the_loop_is_named(app: Dibs, warnings: Warnings) -> None:
    async def hook(ending: Ending) -> None:
        warnings.block_loop()

    add(app, "q", lambda: 7, after=hook)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert ["q: the hook after the run"] == [text.partition(" has blocked")[0] for text in warnings.texts]


async def test_a_thread_that_blocks_is_not_named(app: Dibs, warnings: Warnings) -> None:
    def handler() -> None:
        time.sleep(executor.ASK_EVERY + executor.PATIENCE + 0.2)

    add(app, "q", handler)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert [] == warnings.texts


async def test_the_thread_ends_with_the_worker(app: Dibs) -> None:
    add(app, "q", lambda: 7)
    await put(app, "q", "a")
    await run(app, until="empty")

    for thread in threading.enumerate():
        if thread.name == "dibs-watchdog":
            thread.join(60)
            assert not thread.is_alive()
