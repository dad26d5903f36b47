"""The demo from its first line to its last: walk, enqueue, work, watch, check, sum up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from dibs import Retention
from dibs.cli.demo import tasks
from dibs.cli.demo.backlog import PAGE, QUEUE, Backlog, backlog_of, digest_in, pages, slots_of
from dibs.cli.demo.digest import Digest, check
from dibs.cli.demo.figures import figures
from dibs.cli.demo.ideas import Idea, show_blocked, show_killed, show_retried, shown
from dibs.cli.demo.result import Result
from dibs.cli.demo.screen import Screen
from dibs.cli.demo.walk import Walk
from dibs.model.job import Outcome
from dibs.storage.protocol import Storage
from dibs.worker import run as work

#: How often the bar moves, s.
LOOK = 0.1
#: How many digests are checked between two moves of the bar.
CHECKED = 200
#: How many failed files are named.
TOLD = 5
#: How long a stop waits for files that are being read, s.
GRACE = 5.0
#: Short, so that the jobs of a run that died without a word are soon back, s.
LEASE, HEARTBEAT = 3.0, 1.0


class Plan(Struct, kw_only=True):
    """What is to be done, and by how many processes; 0 is in this one."""

    walk: Walk
    processes: int


class Sending:
    """Enqueues the files, and knows how far it is."""

    def __init__(self, backlog: Backlog) -> None:
        self._fresh = backlog.fresh
        #: Jobs in the queue because of this run or an earlier one.
        self.sent = len(backlog.pending)
        self.total = len(backlog.to_do)
        self.over = not backlog.fresh
        #: When the last file was done, or the last look at those that are not, by time.monotonic().
        self.ended = time.monotonic()

    async def send(self) -> None:
        """Enqueue one job for each file: its path is the id, and its outcome is kept for ever."""
        kept = Retention(completed=None)
        for page in pages(self._fresh, PAGE):
            await tasks.hash_file.enqueue_many(
                tasks.hash_file.options(id=file.path, retention=kept).bind(file.path) for file in page
            )
            self.sent += len(page)
        self.over = True


async def play(plan: Plan, screen: Screen) -> Result:
    """Run the demo on the application's storage, and return what came of it."""
    async with tasks.app as app:
        storage = app.storage
        backlog = await backlog_of(storage, plan.walk.files)
        screen.say(*introduction(plan, backlog, storage))
        begun = time.monotonic()
        # A lease that nobody uses: granting one is how a storage tells its now.
        since = (await storage.grant([QUEUE], 1, "dibs demo")).now
        sending = Sending(backlog)
        ideas, finished = await run(plan, sending, storage, screen)
        result = await sum_up(plan, backlog, storage, seconds=sending.ended - begun, since=since)
        result.ideas, result.interrupted = ideas, not finished
        if finished:
            await check_all(result, backlog, screen)
        result.seconds = round(time.monotonic() - begun, 3)
    return result


def introduction(plan: Plan, backlog: Backlog, storage: Storage) -> list[str]:
    """Say what is about to happen, and with which settings."""
    workers = f"{plan.processes} processes, lease {LEASE:g} s" if plan.processes else "in this process"
    delays = ", ".join(f"{tasks.BACKOFF.delay(n) / 1000:g}" for n in range(1, tasks.RETRIES + 1))
    lines = [
        f"  files    {len(plan.walk.files):,}",
        f"  place    {storage.url}; {storage.durability}",
        f"  workers  {workers}; a failing job is retried {tasks.RETRIES} times, after {delays} s",
        f"  to do    {len(backlog.fresh):,}; {len(backlog.done):,} done by an earlier run and unchanged",
    ]
    if backlog.pending:
        lines.append(
            f"           {len(backlog.pending):,} more are still queued by a run that was interrupted"
        )
    if not storage.capabilities.shared:
        lines.append("  memory   dies with this process: no kill is shown, and a second run begins anew")
    return lines


async def run(plan: Plan, sending: Sending, storage: Storage, screen: Screen) -> tuple[list[Idea], bool]:
    """Work until all is done or somebody stops it; return the ideas and whether it came to its end."""
    working = asyncio.create_task(
        work(
            tasks.app,
            processes=plan.processes,
            grace=GRACE,
            lease=LEASE,
            heartbeat=HEARTBEAT,
            reference="dibs.cli.demo.tasks:app",
        )
    )
    acting = asyncio.create_task(act(plan, sending, storage, screen))
    try:
        await asyncio.wait({working, acting}, return_when=asyncio.FIRST_COMPLETED)
        if acting.done():
            return acting.result(), True
        # Stopped by a signal; or it could not work at all, and then this raises.
        working.result()
        return [], False
    finally:
        working.cancel()
        acting.cancel()
        # Also when it was the work that failed: nobody closes the place under a task that uses it.
        await asyncio.wait({working, acting})
        screen.end()


async def act(plan: Plan, sending: Sending, storage: Storage, screen: Screen) -> list[Idea]:
    """Enqueue the files and watch them, with the ideas on the way."""
    async with asyncio.TaskGroup() as group:
        retried = group.create_task(tell(show_retried, storage, screen))
        group.create_task(sending.send())
        group.create_task(watch(sending, storage, screen))
        ideas = [await tell(show_blocked, storage, screen)]
        if plan.processes:
            # Not before: what the killed process runs comes back, and the busy job would be among it.
            ideas.append(await tell(show_killed, storage, screen))
    return [*ideas, retried.result()]


async def tell(show: Any, storage: Storage, screen: Screen) -> Idea:
    """Show one idea, and say what happened."""
    idea = await shown(show, storage)
    screen.say(f"  {idea.idea:<9} {idea.told}")
    return idea


async def watch(sending: Sending, storage: Storage, screen: Screen) -> None:
    """Move the bar until all is enqueued and no job for a file is left."""
    screen.begin("reading", sending.total)
    while True:
        over = sending.over
        counts = (await storage.counts([QUEUE]))[QUEUE]
        left = counts.waiting + counts.active
        sending.ended = time.monotonic()
        screen.advance(max(0, sending.sent - left))
        if over and not left:
            return screen.end()
        await asyncio.sleep(LOOK)


async def sum_up(plan: Plan, backlog: Backlog, storage: Storage, *, seconds: float, since: int) -> Result:
    """Read what became of each job of this run."""
    ended: list[Outcome] = []
    failures: list[str] = []
    async for file, slot in slots_of(storage, backlog.to_do):
        outcome = slot.outcome
        if outcome is None or outcome.ended_at < since:
            continue
        ended.append(outcome)
        if digest := digest_in(outcome):
            backlog.done[file.path] = digest
        elif outcome.error is not None:
            failures.append(f"{file.path}: {outcome.error.type}: {outcome.error.message}")
    failed = sum(outcome.kind != "completed" for outcome in ended)
    return Result(
        url=storage.url,
        root=plan.walk.root,
        files=len(plan.walk.files),
        bytes=sum(digest.size for digest in backlog.done.values()),
        lines=sum(digest.lines for digest in backlog.done.values()),
        already_done=len(plan.walk.files) - len(backlog.to_do),
        processed=len(ended) - failed,
        failed=failed,
        failures=failures[:TOLD],
        skipped=len(plan.walk.skipped),
        figures=figures(ended, seconds, since),
    )


async def check_all(result: Result, backlog: Backlog, screen: Screen) -> None:
    """Compute every digest once more, directly, and note what differs."""
    screen.begin("checking", len(backlog.done))
    for page in pages(backlog.done.items(), CHECKED):
        result.mismatches += await asyncio.to_thread(check_page, page)
        result.checked += len(page)
        screen.advance(result.checked)
    screen.end()


def check_page(page: Iterable[tuple[str, Digest]]) -> list[str]:
    """Check some digests, on a thread."""
    return [wrong for path, digest in page if (wrong := check(path, digest))]
