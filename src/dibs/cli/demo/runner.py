"""The run of the demo: enqueue the backlog, start workers, follow their events, and check the results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec
from attrs import define, field, frozen

from dibs import Retention
from dibs.cli.demo import tasks
from dibs.cli.demo.display import Display
from dibs.cli.demo.file_tree import FileTree, FoundFile
from dibs.cli.demo.result import (
    DemoResult,
    Idea,
    compute_figures,
    run_idea,
    show_blocked,
    show_killed,
    show_retried,
)
from dibs.cli.demo.tasks import Digest, verify_digest
from dibs.model.job import Outcome, Slot
from dibs.storage.protocol import Storage
from dibs.worker import run as work

QUEUE = "files"
#: Most ids that one read of the storage asks for.
PAGE_SIZE = 1000

T = TypeVar("T")


@define
class Backlog:
    """The files of the demo, by the state of their jobs."""

    #: Results of the files that have not changed since their job completed, by path.
    done: dict[str, Digest] = field(factory=dict)
    #: Files to enqueue: they are new or changed, or their job failed.
    new: list[FoundFile] = field(factory=list)
    #: Files whose job an interrupted run left in the queue, waiting or active.
    pending: list[FoundFile] = field(factory=list)

    @property
    def to_do(self) -> list[FoundFile]:
        """All files whose job has not ended."""
        return [*self.pending, *self.new]


async def build_backlog(storage: Storage, files: Iterable[FoundFile]) -> Backlog:
    """Sort files by the state of their jobs in the storage."""
    backlog = Backlog()
    async for file, slot in read_slots(storage, files):
        digest = decode_digest(slot.outcome)
        if slot.current is not None:
            backlog.pending.append(file)
        elif digest and (digest.size, digest.mtime_ns) == (file.size, file.mtime_ns):
            backlog.done[file.path] = digest
        else:
            backlog.new.append(file)
    return backlog


async def read_slots(storage: Storage, files: Iterable[FoundFile]) -> AsyncIterator[tuple[FoundFile, Slot]]:
    """Yield each file with everything stored for its job, whose id is the path of the file."""
    for page in split_pages(files, PAGE_SIZE):
        slots = await storage.get(QUEUE, [file.path for file in page])
        for pair in zip(page, slots, strict=True):
            yield pair


def decode_digest(outcome: Outcome | None) -> Digest | None:
    """Return the result of a completed job; None for other outcomes and for results of another kind."""
    if outcome is None or outcome.result is None:
        return None
    try:
        return msgspec.json.decode(outcome.result, type=Digest)
    except msgspec.DecodeError:
        return None


def split_pages(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items, in their order, in lists of at most `size` items."""
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page


#: Time between two updates of the progress, s.
POLL_INTERVAL = 0.1
#: Most digests that are checked between two updates of the progress.
CHECK_PAGE_SIZE = 200
#: Most failed files that the result names.
MAX_FAILURES = 5
#: Time that running jobs have to end after Ctrl-C, s.
GRACE = 5.0
#: Lease and heartbeat of the workers, s: short, so that jobs of a killed demo run again soon.
LEASE, HEARTBEAT = 3.0, 1.0


@frozen
class DemoPlan:
    """The files of the demo, and its number of worker processes; 0 runs the jobs in this process."""

    tree: FileTree
    processes: int


class Enqueuer:
    """Enqueues one job for each file, and counts the jobs for the progress bar."""

    def __init__(self, backlog: Backlog) -> None:
        self._new_files = backlog.new
        #: Number of jobs that this run or an interrupted run has enqueued.
        self.sent = len(backlog.pending)
        self.total = len(backlog.to_do)
        #: True once every file is enqueued.
        self.is_complete = not backlog.new
        #: Time of the last update of the progress, by time.monotonic(). After the demo it is the time when
        #: all files were done.
        self.ended = time.monotonic()

    async def send(self) -> None:
        """Enqueue one job for each new file. The path is its id, and its outcome is kept for ever."""
        kept = Retention(completed=None)
        for page in split_pages(self._new_files, PAGE_SIZE):
            await tasks.hash_file.enqueue_many(
                tasks.hash_file.options(id=file.path, retention=kept).bind(file.path) for file in page
            )
            self.sent += len(page)
        self.is_complete = True


async def run_demo(plan: DemoPlan, display: Display) -> DemoResult:
    """Run the demo on the application's storage, and return its result."""
    async with tasks.app as app:
        storage = app.storage
        backlog = await build_backlog(storage, plan.tree.files)
        display.print_lines(*introduction_lines(plan, backlog, storage))
        begun = time.monotonic()
        # Grant a lease only to read the time of the storage's clock; the lease is not used.
        since = (await storage.grant([QUEUE], 1, "dibs demo")).now
        enqueuer = Enqueuer(backlog)
        ideas, finished = await work_and_show(plan, enqueuer, storage, display)
        result = await collect_result(plan, backlog, storage, seconds=enqueuer.ended - begun, since=since)
        result.ideas, result.interrupted = ideas, not finished
        if finished:
            await check_all(result, backlog, display)
        result.seconds = round(time.monotonic() - begun, 3)
    return result


def introduction_lines(plan: DemoPlan, backlog: Backlog, storage: Storage) -> list[str]:
    """Return the lines about the files, the storage and the workers."""
    workers = f"{plan.processes} processes" if plan.processes else "none: jobs run in this process"
    delays = ", ".join(f"{tasks.BACKOFF.delay(n) / 1000:g}" for n in range(1, tasks.RETRIES + 1))
    lines = [
        f"  files       {len(plan.tree.files):,}",
        f"  storage     {storage.url}",
        f"  durability  {storage.durability}",
        f"  workers     {workers}; lease {LEASE:g} s; {tasks.RETRIES} retries, after {delays} s",
        f"  to do       {len(backlog.new):,} files; {len(backlog.done):,} are unchanged since an earlier run",
    ]
    if backlog.pending:
        lines.append(f"              {len(backlog.pending):,} jobs are in the queue since an interrupted run")
    if not storage.capabilities.shared:
        lines.append(
            "  note        memory: jobs end with this process, so no worker is killed and no job is kept"
        )
    return lines


async def work_and_show(
    plan: DemoPlan, enqueuer: Enqueuer, storage: Storage, display: Display
) -> tuple[list[Idea], bool]:
    """Run workers until all jobs are done or a signal arrives.

    Return the demonstrations, and whether all jobs are done.
    """
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
    showing = asyncio.create_task(enqueue_and_show(plan, enqueuer, storage, display))
    try:
        await asyncio.wait({working, showing}, return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            return showing.result(), True
        # The workers ended first: after a signal, or with an error that result() raises.
        working.result()
        return [], False
    finally:
        working.cancel()
        showing.cancel()
        # Wait for both tasks after an error, too, so that neither uses the storage after it is closed.
        await asyncio.wait({working, showing})
        display.end()


async def enqueue_and_show(
    plan: DemoPlan, enqueuer: Enqueuer, storage: Storage, display: Display
) -> list[Idea]:
    """Enqueue the files and show their progress. Run the demonstrations at the same time."""
    async with asyncio.TaskGroup() as group:
        retried = group.create_task(show_idea(show_retried, storage, display))
        group.create_task(enqueuer.send())
        group.create_task(show_progress(enqueuer, storage, display))
        ideas = [await show_idea(show_blocked, storage, display)]
        if plan.processes:
            # After show_blocked, because the killed process may also run its busy job.
            ideas.append(await show_idea(show_killed, storage, display))
    return [*ideas, retried.result()]


async def show_idea(show: Any, storage: Storage, display: Display) -> Idea:
    """Run one demonstration, and print its name and one sentence about it."""
    idea = await run_idea(show, storage)
    display.print_lines(f"  {idea.idea:<11} {idea.told}")
    return idea


async def show_progress(enqueuer: Enqueuer, storage: Storage, display: Display) -> None:
    """Show the progress until all files are enqueued and done."""
    display.begin("reading", enqueuer.total)
    while True:
        is_complete = enqueuer.is_complete
        counts = (await storage.counts([QUEUE]))[QUEUE]
        left = counts.waiting + counts.active
        enqueuer.ended = time.monotonic()
        display.advance(max(0, enqueuer.sent - left))
        if is_complete and not left:
            return display.end()
        await asyncio.sleep(POLL_INTERVAL)


async def collect_result(
    plan: DemoPlan, backlog: Backlog, storage: Storage, *, seconds: float, since: int
) -> DemoResult:
    """Read the outcomes of this run's jobs, and return the result of the demo."""
    ended: list[Outcome] = []
    failures: list[str] = []
    async for file, slot in read_slots(storage, backlog.to_do):
        outcome = slot.outcome
        if outcome is None or outcome.ended_at < since:
            continue
        ended.append(outcome)
        if digest := decode_digest(outcome):
            backlog.done[file.path] = digest
        elif outcome.error is not None:
            failures.append(f"{file.path}: {outcome.error.type}: {outcome.error.message}")
    failed = sum(outcome.kind != "completed" for outcome in ended)
    return DemoResult(
        url=storage.url,
        root=plan.tree.root,
        files=len(plan.tree.files),
        bytes=sum(digest.size for digest in backlog.done.values()),
        lines=sum(digest.lines for digest in backlog.done.values()),
        already_done=len(plan.tree.files) - len(backlog.to_do),
        processed=len(ended) - failed,
        failed=failed,
        failures=failures[:MAX_FAILURES],
        skipped=len(plan.tree.skipped),
        figures=compute_figures(ended, seconds, since),
    )


async def check_all(result: DemoResult, backlog: Backlog, display: Display) -> None:
    """Compute every digest a second time, and add the differences to the result."""
    display.begin("checking", len(backlog.done))
    for page in split_pages(backlog.done.items(), CHECK_PAGE_SIZE):
        result.mismatches += await asyncio.to_thread(check_page, page)
        result.checked += len(page)
        display.advance(result.checked)
    display.end()


def check_page(page: Iterable[tuple[str, Digest]]) -> list[str]:
    """Return a message for each wrong digest of a page. Called on a thread, because it reads the files."""
    return [wrong for path, digest in page if (wrong := verify_digest(path, digest))]
