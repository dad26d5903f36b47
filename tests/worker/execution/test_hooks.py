"""The hook of a task, which is called between the end of a run and its settlement."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from dibs.app import Dibs
from dibs.client.calls.handler import Ending
from dibs.client.options.job_settings import Retention
from dibs.errors import PermanentError
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest
from dibs.worker import run
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import RunOutcomes
from tests.worker.execution.test_outcome import Raiser, stall
from tests.worker.faulty_storage import faulty_storage
from tests.worker.jobs import add, outcome, put


async def run_with_hook(app: Dibs, hook: Any, function: Callable[[], Any], **options: Any) -> None:
    add(app, "q", function, after=hook, **options)
    await put(app, "q", "a")
    await run(app, until="empty")


async def test_a_hook_may_change_result_and_retention(app: Dibs) -> None:
    async def hook(ending: Ending) -> None:
        ending.result = {"was": ending.result}
        ending.retention = Retention(completed=None)

    await run_with_hook(app, hook, lambda: 7)

    kept = await outcome(app, "q", "a")
    assert (b'{"was":7}', None) == (kept.result, kept.expires_at)


async def test_a_hook_may_be_a_plain_function_and_sees_failures(app: Dibs) -> None:
    seen: list[tuple[str, str]] = []

    def hook(ending: Ending) -> None:
        assert ending.error is not None
        seen.append((ending.kind, ending.error.message))

    await run_with_hook(app, hook, Raiser(PermanentError("no")))

    assert [("failed", "no")] == seen


async def test_a_hook_is_not_called_when_a_job_is_retried(app: Dibs) -> None:
    seen: list[str] = []

    def hook(ending: Ending) -> None:
        seen.append(ending.kind)

    await run_with_hook(app, hook, Raiser(ValueError("no")))

    assert ["completed"] == seen


async def test_a_hook_that_raises_changes_nothing(app: Dibs) -> None:
    def hook(ending: Ending) -> None:
        ending.result = 8
        raise ValueError("no")

    await run_with_hook(app, hook, lambda: 7)

    assert b"7" == (await outcome(app, "q", "a")).result


class UnprintableError(Exception):
    """An exception whose traceback cannot be printed: that raises SystemExit, which logging passes on."""

    @property
    def __cause__(self) -> BaseException | None:
        raise SystemExit(5)

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None: ...


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(),
        UnprintableError(),
    ],
)
@pytest.mark.parametrize("kind", ["async", "def"])
async def test_an_exception_that_ends_programs_ends_only_the_hook(
    app: Dibs, caplog: pytest.LogCaptureFixture, error: BaseException, kind: str
) -> None:
    def hook(ending: Ending) -> None:
        raise error

    async def async_hook(ending: Ending) -> None:
        raise error

    async with asyncio.timeout(20):
        await run_with_hook(app, hook if kind == "def" else async_hook, lambda: 7)

    assert b"7" == (await outcome(app, "q", "a")).result
    assert "the hook after the run failed" in caplog.text


async def test_a_hook_that_does_not_stop_is_left_behind(app: Dibs) -> None:
    """The hook has the timeout of the handler, and ignores its cancellation at this timeout."""
    cancelled = asyncio.Event()

    async def hook(ending: Ending) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(20):
        await run_with_hook(app, hook, lambda: 7, timeout=200)

    assert cancelled.is_set()
    assert b"7" == (await outcome(app, "q", "a")).result


@pytest.mark.parametrize(("stalls", "calls"), [(2, 1), (3, 0)])
async def test_a_job_that_stalled_too_often_calls_its_hook_once(app: Dibs, stalls: int, calls: int) -> None:
    """A hook that kills its process would otherwise kill the next one, again and again."""
    seen: list[str] = []
    add(app, "q", lambda: 7, after=lambda ending: seen.append(ending.kind), max_stalls=1)
    await put(app, "q", "a")
    for _ in range(stalls):
        await stall(app, "q")
    await run(app, until="empty")

    failed = await outcome(app, "q", "a")
    assert ("failed", stalls) == (failed.kind, failed.stalls)
    assert ["failed"] * calls == seen


async def test_the_time_of_a_hook_begins_when_it_is_called(app: Dibs) -> None:
    """The supervisor kills a process whose run is past its deadline. For a hook, the time starts anew."""
    settled = asyncio.Event()
    started = array("d", [1.0])
    add(app, "q", lambda: 7, after=lambda _: None)
    await put(app, "q", "a")
    lease = (await app.storage.grant(["q"], 60_000, "me")).lease
    [job] = (await app.storage.claim("q", lease, 1)).jobs
    before = time.monotonic()

    RunOutcomes(lambda *_: settled.set(), started).settle_with_hook(
        Invocation(app.handlers["q"], job, 0), Complete(result=b"7")
    )
    await settled.wait()

    assert before <= started[0]


# -- A worker sets `fail_handler` for the queues with a failure handler, so each failure is handled --


async def handles_failure(app: Dibs, queue: str) -> bool:
    found = {info.name: info.settings.fail_handler for info in await app.storage.queues()}
    return found.get(queue, False)


async def handed_off(app: Dibs, id: str) -> int:
    await app.storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id))])
    async with app.queue("q").receive(wait=0) as claims:
        return await (await anext(claims)).hand_off()


@pytest.mark.parametrize("queues", [["q"], ["q!fail"], None])
async def test_the_setting_is_written_before_the_first_claim(app: Dibs, queues: list[str] | None) -> None:
    add(app, "q", print)
    add(app, "q!fail", print)
    async with faulty_storage(app) as storage:
        await run(app, queues=queues, until="empty")
        asked = [call for call in storage.asked if call[0] in ("configure", "claim", "settle_and_claim")]

    assert ("configure", "q") == asked[0]
    assert await handles_failure(app, "q")
    assert not await handles_failure(app, "q!fail")


async def test_a_worker_without_a_failure_handler_leaves_the_setting(app: Dibs) -> None:
    add(app, "q", print)
    await run(app, until="empty")
    before = await handles_failure(app, "q")
    await app.queue("q").configure(fail_handler=True)
    await run(app, until="empty")

    assert (False, True) == (before, await handles_failure(app, "q"))


async def test_a_program_that_does_not_declare_the_handler_makes_the_fail_job(app: Dibs) -> None:
    """`add` declares the handler of the fail queue; the app has none when the two jobs fail."""
    add(app, "q!fail", print)
    await run(app, until="empty")
    del app.handlers["q!fail"]
    await app.queue("q").finish("a", await handed_off(app, "a"), error=ValueError("finished"))
    await put(app, "q", "b")
    async with app.queue("q").receive(wait=0) as claims:
        await (await anext(claims)).fail("claimed")

    page = await app.storage.list("q!fail", "waiting", limit=10)
    origins = [slot.current.origin for _, slot in page.items if slot.current is not None]
    assert ["a: finished", "b: claimed"] == sorted(f"{o.id}: {o.error.message}" for o in origins if o)


async def test_a_second_start_writes_nothing(app: Dibs) -> None:
    add(app, "q!fail", print)
    await run(app, until="empty")
    async with faulty_storage(app) as storage:
        await run(app, until="empty")

    assert "configure" not in storage.calls
