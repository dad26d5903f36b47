"""The run of the demo: enqueue the files, start workers, show the progress, and check the results."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import sysconfig
import textwrap
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from attrs import define, field

from dibs import Retention
from dibs.cli.demo import tasks
from dibs.cli.demo.ideas import Idea, run_idea, show_blocked, show_killed, show_retried
from dibs.cli.demo.tasks import Digest, compute_digest
from dibs.cli.output import print_lines
from dibs.cli.progress import progress_bar
from dibs.errors import Refused
from dibs.model.check_values import check_text
from dibs.model.error_text import summarize_exception
from dibs.model.job import Outcome, Slot
from dibs.model.limits import LIMITS
from dibs.worker import run as work

QUEUE = "files"
#: Directory of the demo's queue, in the working directory. `find_files` skips every directory of this name.
QUEUE_DIRECTORY = ".dibs-demo"
#: Folders inside the standard library's folder that do not belong to it.
EXCLUDED_FROM_STDLIB = frozenset({"site-packages", "dist-packages", "__pycache__"})
#: Most files of one call of the storage, and of one step of the check.
PAGE_SIZE = 500
#: Time between two updates of the progress, s.
POLL_INTERVAL = 0.1
#: Most failed files that the result names.
MAX_FAILURES = 5
#: Time that running jobs have to end after Ctrl-C, s.
GRACE = 5.0
#: Lease and heartbeat of the workers, s: short, so that jobs of a killed demo run again soon.
LEASE, HEARTBEAT = 3.0, 1.0
#: Indentation of the later lines of a folded text: the width of the labels of the demo.
INDENT = " " * 14


def standard_library() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


@define
class FoundFiles:
    """The regular files below a folder, and the paths that cannot become jobs."""

    #: Path -> size in bytes and time of change, ns.
    files: dict[str, tuple[int, int]] = field(factory=dict)
    #: Paths that cannot become jobs, each with the reason.
    skipped: list[tuple[str, str]] = field(factory=list)

    def add(self, name: str) -> None:
        """Add a regular file, or the reason why it cannot become a job. Ignore links, sockets and devices."""
        try:
            about = os.lstat(name)
            if stat.S_ISREG(about.st_mode):
                check_text("its path", name, LIMITS.id)
                self.files[name] = (about.st_size, about.st_mtime_ns)
        except OSError as error:
            self.skipped.append((name, error.strerror or summarize_exception(error)))
        except Refused as error:
            self.skipped.append((name, str(error)))


def find_files(path: Path | None, exclude: Path | None = None) -> FoundFiles:
    """Find all regular files below a path, or in the standard library. Skip everything below `exclude`."""
    # Unlike resolve(), abspath() keeps symbolic links.
    root = os.path.abspath(path or standard_library())  # noqa: PTH100
    left_out = {QUEUE_DIRECTORY, *(EXCLUDED_FROM_STDLIB if path is None else ())}
    excluded = exclude and os.path.abspath(exclude)  # noqa: PTH100
    found = FoundFiles()
    if not Path(root).is_dir():
        found.add(root)
    for folder, below, names in os.walk(
        root, onerror=lambda e: found.skipped.append((e.filename, str(e.strerror)))
    ):
        below[:] = sorted(n for n in below if n not in left_out and os.path.join(folder, n) != excluded)  # noqa: PTH118
        for name in sorted(names):
            found.add(os.path.join(folder, name))  # noqa: PTH118 - a Path for each is slow
    return found


@define(kw_only=True)
class DemoResult:
    """The result of one run of the demo. Its fields are the JSON of `dibs demo --json`."""

    url: str
    root: str
    interrupted: bool = False
    files: int = 0
    #: Number of files that have not changed since an earlier run.
    already_done: int = 0
    processed: int = 0
    failed: int = 0
    #: The first failed files, each with its error.
    failures: list[str] = field(factory=list)
    #: Number of paths that could not become jobs.
    skipped: int = 0
    #: Number of digests that were computed a second time.
    checked: int = 0
    #: A message for each wrong digest.
    mismatches: list[str] = field(factory=list)
    #: Duration of the whole run, with demonstrations and checks.
    seconds: float = 0.0
    #: Rate of the jobs of the files, until the last of them had ended.
    jobs_per_second: float = 0.0
    #: Runs of these jobs that an error ended, and runs whose worker was killed.
    retries: int = 0
    stalls: int = 0
    ideas: list[Idea] = field(factory=list)

    @property
    def good(self) -> bool:
        """True if all demonstrations succeeded and all digests are right."""
        return not self.interrupted and not self.mismatches and all(idea.shown for idea in self.ideas)

    def count(self, path: str, outcome: Outcome) -> None:
        """Count a job that ended in this run."""
        self.retries += outcome.retries + outcome.timeouts
        self.stalls += outcome.stalls
        self.processed += outcome.kind == "completed"
        self.failed += outcome.kind != "completed"
        if outcome.error is not None and len(self.failures) < MAX_FAILURES:
            self.failures.append(f"{path}: {outcome.error.type}: {outcome.error.message}")

    def summary(self) -> str:
        """Return the last line of the output: files, correct digests, demonstrations and duration."""
        done = self.processed + self.already_done
        if self.interrupted:
            return (
                f"interrupted: {done:,} of {self.files:,} files are done, and no job is lost. "
                "Run it again to continue"
            )
        shown = sum(idea.shown for idea in self.ideas)
        verdict = "all digests correct" if not self.mismatches else f"{len(self.mismatches):,} DIGESTS WRONG"
        failed = f", {self.failed:,} failed" if self.failed else ""
        return (
            f"{done:,} {'file' if done == 1 else 'files'}, {self.processed:,} of them now at "
            f"{self.jobs_per_second:,.0f} jobs/s{failed}, {verdict}, "
            f"{shown} of {len(self.ideas)} demonstrations succeeded, in {self.seconds:.1f} s"
        )


class Demo:
    """One run of the demo. With 0 `processes`, the jobs run in this process."""

    def __init__(self, root: Path | None, found: FoundFiles, processes: int, *, silent: bool) -> None:
        self._root = root or standard_library()
        self._found = found
        self._processes = processes
        self._silent = silent
        #: Results of the files that have not changed since their job completed, by path.
        self._done: dict[str, Digest] = {}
        #: Files to enqueue: they are new or changed, or their job failed.
        self._new: list[str] = []
        #: Files whose job an interrupted run left in the queue, waiting or active.
        self._pending: list[str] = []
        #: Number of jobs that this run or an interrupted run has enqueued.
        self._sent = 0
        #: Time at which all files were done, by time.monotonic().
        self._ended = 0.0

    async def run(self) -> DemoResult:
        """Run the demo on the storage of the application, and return its result."""
        async with tasks.app as app:
            begun = self._ended = time.monotonic()
            # Grant a lease only to read the time of the storage's clock; the lease is not used.
            since = (await app.storage.grant([QUEUE], 1, "dibs demo")).now
            await self._sort_files()
            self._introduce()
            result = DemoResult(
                url=app.storage.url,
                root=str(self._root),
                files=len(self._found.files),
                already_done=len(self._done),
                skipped=len(self._found.skipped),
            )
            ideas = await self._work_and_show()
            async for path, slot in self._slots([*self._pending, *self._new]):
                if slot.outcome is not None and slot.outcome.ended_at >= since:
                    result.count(path, slot.outcome)
                    self._keep(path, slot.outcome)
            ended = result.processed + result.failed
            result.jobs_per_second = round(ended / max(self._ended - begun, 0.001), 1)
            result.interrupted, result.ideas = ideas is None, ideas or []
            if ideas is not None:
                await self._check_all(result)
            result.seconds = round(time.monotonic() - begun, 3)
        return result

    async def _sort_files(self) -> None:
        """Sort the files by the state of their jobs."""
        async for path, slot in self._slots(list(self._found.files)):
            if slot.current is not None:
                self._pending.append(path)
            elif not self._keep(path, slot.outcome):
                self._new.append(path)
        self._sent = len(self._pending)

    async def _slots(self, paths: list[str]) -> AsyncIterator[tuple[str, Slot]]:
        """Yield each file with everything stored for its job, whose id is the path of the file."""
        for page in _pages(paths):
            for pair in zip(page, await tasks.app.storage.get(QUEUE, page), strict=True):
                yield pair

    def _keep(self, path: str, outcome: Outcome | None) -> bool:
        """Keep the result of a completed job, and return whether the file has not changed since."""
        try:
            digest = msgspec.json.decode((outcome and outcome.result) or b"", type=Digest)
        except msgspec.DecodeError:
            return False
        if (digest.size, digest.mtime_ns) != self._found.files[path]:
            return False
        self._done[path] = digest
        return True

    def _introduce(self) -> None:
        """Print lines about the files, the storage and the workers."""
        storage = tasks.app.storage
        workers = f"{self._processes} processes" if self._processes else "none: jobs run in this process"
        delays = ", ".join(f"{tasks.BACKOFF.delay(n) / 1000:g}" for n in range(1, tasks.RETRIES + 1))
        self.say(
            f"dibs demo: one job for each file below {self._root}",
            f"  files       {len(self._found.files):,}",
            f"  storage     {storage.url}",
            f"  durability  {storage.durability}",
            f"  workers     {workers}; lease {LEASE:g} s; {tasks.RETRIES} retries, after {delays} s",
            f"  to do       {len(self._new):,} files; {len(self._done):,} are unchanged since an earlier run",
        )
        if self._pending:
            self.say(f"              {self._sent:,} jobs are in the queue since an interrupted run")
        if not storage.capabilities.shared:
            self.say(
                "  note        memory: jobs end with this process, so no worker is killed and no job is kept"
            )

    def say(self, *lines: str) -> None:
        """Print lines, folded between words on a terminal; nothing with --json."""
        if not self._silent:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
            for line in lines:
                folded = (
                    textwrap.wrap(line, width, subsequent_indent=INDENT, break_long_words=False)
                    if width
                    else ()
                )
                print_lines(*folded or [line])

    async def _work_and_show(self) -> list[Idea] | None:
        """Run workers until all jobs are done. Return the demonstrations; None if a signal arrived before."""
        working = asyncio.create_task(
            work(
                tasks.app,
                processes=self._processes,
                grace=GRACE,
                lease=LEASE,
                heartbeat=HEARTBEAT,
                reference="dibs.cli.demo.tasks:app",
            )
        )
        showing = asyncio.create_task(self._enqueue_and_show())
        try:
            await asyncio.wait({working, showing}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                return showing.result()
            # The workers ended first: after a signal, or with an error that result() raises.
            working.result()
            return None
        finally:
            working.cancel()
            showing.cancel()
            # Wait for both tasks after an error, too, so that neither uses the storage after it is closed.
            await asyncio.wait({working, showing})

    async def _enqueue_and_show(self) -> list[Idea]:
        """Enqueue the files and show their progress. Run the demonstrations at the same time."""
        async with asyncio.TaskGroup() as group:
            retried = group.create_task(self._show(show_retried))
            sending = group.create_task(self._send())
            group.create_task(self._show_progress(sending))
            ideas = [await self._show(show_blocked)]
            if self._processes:
                # After show_blocked, because the killed process may also run its busy job.
                ideas.append(await self._show(show_killed))
        return [*ideas, retried.result()]

    async def _show(self, show: Any) -> Idea:
        """Run one demonstration, and print its name and one sentence about it."""
        idea = await run_idea(show)
        self.say(f"  {idea.idea:<11} {idea.told}")
        return idea

    async def _send(self) -> None:
        """Enqueue one job for each new file. The path is its id, and its outcome is kept for ever."""
        kept = Retention(completed=None)
        for page in _pages(self._new):
            await tasks.hash_file.enqueue_many(
                tasks.hash_file.options(id=path, retention=kept).bind(path) for path in page
            )
            self._sent += len(page)

    async def _show_progress(self, sending: asyncio.Task[None]) -> None:
        """Show the progress until all files are enqueued and done."""
        with progress_bar("reading", len(self._pending) + len(self._new)) as advance:
            while True:
                is_complete = sending.done()
                counts = (await tasks.app.storage.counts([QUEUE]))[QUEUE]
                left = counts.waiting + counts.active
                self._ended = time.monotonic()
                advance(max(0, self._sent - left))
                if is_complete and not left:
                    return
                await asyncio.sleep(POLL_INTERVAL)

    async def _check_all(self, result: DemoResult) -> None:
        """Compute every digest a second time, and add the differences to the result."""
        with progress_bar("checking", len(self._done)) as advance:
            for page in _pages(list(self._done)):
                result.mismatches += await asyncio.to_thread(self._check, page)
                result.checked += len(page)
                advance(result.checked)

    def _check(self, page: Iterable[str]) -> list[str]:
        """Return a message for each wrong digest. Called on a thread, because it reads the files."""
        return [wrong for path in page if (wrong := compare_digest(path, self._done[path]))]


def compare_digest(path: str, stored: Digest) -> str:
    """Compute the digest of a file again; return a message if the job's digest is wrong, otherwise "".

    Also return "" if the file was changed or removed after its job had read it.
    """
    try:
        direct = compute_digest(path)
    except OSError:
        return ""
    if direct == stored or (direct.size, direct.mtime_ns) != (stored.size, stored.mtime_ns):
        return ""
    return f"{path}: the job computed {stored.sha256[:12]}..., a second computation {direct.sha256[:12]}..."


def _pages(paths: list[str]) -> Iterator[list[str]]:
    yield from (paths[start : start + PAGE_SIZE] for start in range(0, len(paths), PAGE_SIZE))
