"""The demonstrations of `dibs demo`. Each runs real jobs, then reads the event log to report them.

In the JSON of `dibs demo --json` a demonstration is called an idea.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise

from attrs import frozen

from dibs import Event, Queue
from dibs.cli.demo import tasks
from dibs.errors import DibsError, JobFailed
from dibs.model.error_text import message_of
from dibs.storage.protocol import LATEST

#: Duration of the busy job at each try, s. Its duplicate must be enqueued while it runs.
BUSY_SECONDS = (0.5, 2.0, 8.0)
#: Time limit of each wait in this module, s.
TIMEOUT = 30.0
FINAL_KINDS = ("completed", "failed", "cancelled")


@frozen
class Idea:
    """The result of a demonstration, as in the JSON of `dibs demo --json`."""

    #: Name of the demonstration: blocked, retried or killed.
    idea: str
    #: True if dibs behaved as expected.
    shown: bool
    #: One sentence for people about the jobs and their times.
    told: str


async def run_idea(show: Callable[[], Awaitable[Idea]]) -> Idea:
    """Run a demonstration. An error becomes a failed result: the jobs of the files go on."""
    try:
        return await show()
    except (DibsError, TimeoutError, ValueError) as error:
        name = show.__name__.removeprefix("show_")
        return Idea(name, shown=False, told=f"failed: {type(error).__name__}: {message_of(error)}")


async def show_blocked() -> Idea:
    """Enqueue an id again while its first job is active."""
    queue, busy = tasks.app.queue("busy"), tasks.stay_busy.options(id="one-at-a-time")
    for seconds in BUSY_SECONDS:
        seen = await _end_of_log(queue)
        await busy.enqueue(seconds)
        await _wait_until_active(queue, "one-at-a-time")
        duplicate = await busy.enqueue(0.0)
        await duplicate.result(wait=TIMEOUT)
        runs = await _runs_since(queue, seen, duplicate.revision)
        ended = [run for run in runs if run.kind == "completed"]
        # One run is possible, too: if the first run stalled, the duplicate is folded into its repetition. Try
        # again.
        if duplicate.verdict == "blocked" and len(ended) > 1:
            (gap,) = _pauses_between(ended[-2:])
            told = f"an id was enqueued again during its run: the second run started {gap} ms after the first"
            return Idea("blocked", gap >= 0, told)
    return Idea("blocked", shown=False, told="the id was never enqueued while its job was active")


async def show_retried() -> Idea:
    """Enqueue a job that fails until its failure handler runs."""
    queue, handlers = tasks.app.queue("missing"), tasks.app.queue("missing!fail")
    seen, handled = await _end_of_log(queue), await _end_of_log(handlers)
    missing = tasks.read_missing.options(id="a-file-that-is-not-there")
    ticket = await missing.enqueue("/a/file/that/is/not/there")
    with suppress(JobFailed):
        await ticket.result(wait=TIMEOUT)
    runs = await _runs_since(queue, seen, ticket.revision)
    handler = (await _runs_since(handlers, handled))[-1]
    failed = [run for run in runs if run.kind in ("retried", "failed")]
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in _pauses_between(failed))
    told = f"a job failed {len(failed)} times, with pauses of {seconds} s; then its failure handler ran"
    return Idea("retried", (runs[-1].kind, handler.kind) == ("failed", "completed"), told)


async def show_killed() -> Idea:
    """Enqueue a job whose first run kills its worker process. Another process must run it again."""
    queue = tasks.app.queue("killed")
    seen = await _end_of_log(queue)
    ticket = await tasks.kill_the_worker.options(id="survivor").enqueue()
    run = await ticket.result(wait=TIMEOUT)
    runs = await _runs_since(queue, seen, ticket.revision)
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in _pauses_between(runs))
    told = f"a worker was killed during a job: the job ran again {seconds} s later, and run {run} completed"
    return Idea("killed", [run.kind for run in runs[-2:]] == ["stalled", "completed"], told)


def _pauses_between(runs: Sequence[Event]) -> list[int]:
    """Return the time in ms between the end of each run and the claim of the next run."""
    return [
        round((after.claimed_at - before.finished_at).total_seconds() * 1000)
        for before, after in pairwise(runs)
        if after.claimed_at and before.finished_at
    ]


async def _end_of_log(queue: Queue) -> str:
    """Return the offset of the last event of a queue."""
    return (await tasks.app.storage.events(queue.name, after=LATEST)).offset


async def _wait_until_active(queue: Queue, id: str) -> None:
    """Wait until a worker runs the job. Raises TimeoutError after TIMEOUT seconds."""
    async with asyncio.timeout(TIMEOUT):
        while not (await tasks.app.storage.counts([queue.name]))[queue.name].active:
            await tasks.app.storage.wait([queue.name], for_="ids", ids=[id], timeout=0.02)


async def _runs_since(queue: Queue, after: str, revision: int = 0) -> list[Event]:
    """Wait until the job of an enqueue has ended, and return the ends of runs in the log after an offset.

    `revision` is the number of that enqueue, `ticket.revision`. Raises TimeoutError after TIMEOUT seconds.
    """
    found: list[Event] = []
    async with asyncio.timeout(TIMEOUT), queue.events(after) as events:
        async for event in events:
            found.append(event)
            if event.kind in FINAL_KINDS and event.revision >= revision:
                break
    return found
