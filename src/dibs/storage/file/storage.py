"""The file storage: the index of memory, with every step written down before anyone hears of it.

Each process holds the whole index and replays what others committed. All of it happens on one thread of
the storage's own, so a slow disk never holds up an event loop and the index needs no lock of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from dibs.errors import ConfigurationError, NotRunning, OutcomeUnknown, StorageDamaged, UnknownOption
from dibs.model.answers import Wake
from dibs.storage.capabilities import Capabilities
from dibs.storage.file import checkpoint, commits
from dibs.storage.file.directory import Directory, refusal, unreadable
from dibs.storage.file.frames import Torn, frame, sync_folder, write_whole
from dibs.storage.file.listener import CommitWatch
from dibs.storage.file.locks import CommitLock
from dibs.storage.file.replay import Replay
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.storage import IndexedStorage, P, T, Verb
from dibs.storage.indexed.wait import Alarm, Waiter, seconds_until_due, sleep_until
from dibs.storage.indexed.waiters import Wakeups, wake_of
from dibs.storage.protocol import Clock
from dibs.storage.registry import read_flag, read_options

log: Final = logging.getLogger("dibs.storage.file")
R = TypeVar("R")

_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {"fsync": read_flag, "poll": float}


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> FileStorage:
    """Return the storage for file:PATH, relative to the working directory unless it begins with a slash."""
    place, named = read_options(url, _OPTIONS, options)
    path = place.partition(":")[2]
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    if not path:
        raise UnknownOption("file: needs a path, as in file:./jobs")
    return FileStorage(path, clock=clock, **named)


class FileStorage(IndexedStorage):
    """Jobs in a directory, for any number of processes at once.

    `fsync` makes each commit survive power loss; without it commits survive the death of processes.
    `poll` is how many seconds a lost wake-up may cost.
    """

    capabilities = Capabilities(
        durable=True, shared=True, cross_queue=True, push_wakeups=True, manual_clock=True
    )

    def __init__(self, path: str, *, clock: Clock = "system", fsync: bool = False, poll: float = 1.0) -> None:
        super().__init__(clock)
        if isinstance(poll, bool) or not isinstance(poll, int | float) or not 0 < poll < float("inf"):
            raise ConfigurationError(f"poll is {poll!r}; it must be a number of seconds above 0")
        if fsync not in (True, False):
            raise ConfigurationError(f"fsync is {fsync!r}; it must be True or False")
        if "\0" in path:
            raise ConfigurationError("the path of a file storage holds a NUL character; leave it out")
        self.url = f"file:{path}"
        self.durability = (
            "power loss: every commit is fsynced"
            if fsync
            else "process crash: commits are not fsynced (?fsync=1 does)"
        )
        self._fsync = fsync
        self._poll = poll
        self._directory = Directory(path)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = CommitLock(self._directory)
        self._replay = Replay(self._directory)
        self._wakeups = Wakeups()
        self._watch: CommitWatch | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._looked_at = 0.0

    # -- open and close ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make or open the directory, and replay what is in it."""
        if self._is_forked:
            # The parent's thread may have been in the middle of anything.
            self._begin_anew()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dibs-file")
        self._open, self._process = True, os.getpid()
        try:
            await self._on_thread(self._begin)
        except BaseException:
            await self.close()
            raise

    def _begin(self) -> None:
        made = self._directory.prepare()
        if made and self._fsync:
            self._sync_root()
        self._follow_steps(self._replay.first_steps())

    def _sync_root(self) -> None:
        root = self._directory.root
        try:
            sync_folder(str(root))
            sync_folder(str(root.absolute().parent))
        except OSError as error:
            raise refusal(error, f"cannot make {root} durable") from error

    async def close(self) -> None:
        """Stop the thread and the watch; waits end."""
        self._open = False
        thread, self._thread = self._thread, None
        if thread is None or self._is_forked:
            return
        await _done_on(thread, self._end)
        thread.shutdown(wait=False)

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._wakeups.wake_all()

    async def _on_thread(self, work: Callable[[], R]) -> R:
        self._check_open()
        if self._thread is None:
            raise NotRunning(f"{self.url} is not open")
        return await _done_on(self._thread, work)

    # -- steps ---------------------------------------------------------------------------------------

    async def _step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._on_thread(lambda: self._commit(now, lambda index: verb(index, *args, **kwargs)))

    async def _look(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def look() -> T:
            self._catch_up()
            return verb(self._at(now), *args, **kwargs)

        return await self._on_thread(look)

    def _at(self, now: int | None) -> Index:
        """Return the index at the time of this step."""
        index, at = self._replay.index, self._time(now)
        if at > index.now:
            index.now = at
            if self._manual:
                self._wakeups.wake_all()
        return index

    def _commit(self, now: int | None, verb: Callable[[Index], T]) -> T:
        """Run a verb under the lock on an index that is up to date, and write down what it did."""
        with self._lock.held():
            self._catch_up(locked=True)
            index = self._at(now)
            number = index.number
            answer, step = index.attempt(verb)
            if step:
                self._write(index, step, number)
        return answer

    def _write(self, index: Index, step: Step, number: int) -> None:
        """Put the commit of a step in place; if that fails the step has not happened."""
        replay, directory = self._replay, self._directory
        mine = replay.number + 1
        temporary = f"{directory.tmp}/{mine:016x}"
        try:
            body = frame(mine, commits.encode(index, step))
            size = write_whole(directory.commit(mine), temporary, [body], fsync=self._fsync)
        except BaseException as error:
            index.undo(step, number)
            if isinstance(error, OSError):
                raise refusal(error, f"cannot commit to {directory.root}") from error
            raise
        replay.took(mine, size)
        self._wakeups.notify(step)
        if self._fsync:
            self._sync_commits()
        if replay.growth.enough:
            self._checkpoint()

    def _sync_commits(self) -> None:
        try:
            sync_folder(str(self._directory.commits))
        except OSError as error:
            # The name is there for every other process, but may not survive power loss: neither yes nor no.
            raise OutcomeUnknown(
                f"committed to {self.url}, but not made durable: {error.strerror}"
            ) from error

    def _checkpoint(self) -> None:
        replay = self._replay
        try:
            size = checkpoint.write(self._directory, replay.index, replay.number, fsync=self._fsync)
        except OSError as error:
            # The commits are all there; a checkpoint only makes opening faster.
            log.warning("no checkpoint of %s: %s", self.url, error.strerror)
            replay.growth.put_off()
            return
        replay.checkpointed(size)

    def _catch_up(self, *, locked: bool = False) -> None:
        """Replay what other processes committed, and wake whom it concerns."""
        self._looked_at = time.monotonic()
        self._follow_steps(self._replay.new_steps(locked=locked))

    def _follow_steps(self, steps: Iterator[Step]) -> None:
        try:
            for step in steps:
                self._wakeups.notify(step)
        except Torn as torn:
            raise StorageDamaged(f"{torn}. See docs/explanation/file-storage.md") from None
        except OSError as error:
            raise unreadable(error, f"cannot read {self._directory.root}") from error
        if self._replay.reloaded:
            self._replay.reloaded = False
            self._wakeups.missed()

    # -- waiting -------------------------------------------------------------------------------------

    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> Wake:
        deadline = Alarm(timeout)
        try:
            woken, due = await self._on_thread(lambda: self._join(waiter, since))
            while not woken and not deadline.rang:
                woken = await sleep_until(waiter, deadline.left, due.left, self._poll) or due.rang
                if not woken:
                    await self._on_thread(self._poll_commits)
                    woken = waiter.woken
        finally:
            # Also if the join was not waited for: the thread does one after the other.
            if self._thread is not None:
                self._thread.submit(self._wakeups.leave, waiter)
        if not self._open:
            raise NotRunning(f"{self.url} was closed")
        return await self._on_thread(lambda: wake_of(self._wakeups, self._replay.index, waiter, woken=woken))

    def _join(self, waiter: Waiter, since: Mapping[str, str]) -> tuple[bool, Alarm]:
        if self._watch is None:
            self._watch = CommitWatch(self._directory, self._seen)
            self._watch.start()
        self._catch_up()
        index = self._at(None)
        self._wakeups.join(waiter)
        due = Alarm(None if self._manual else seconds_until_due(index, waiter))
        return self._wakeups.moved(waiter, index, since), due

    def _poll_commits(self) -> None:
        # With many waits at once, one look per poll serves them all.
        if time.monotonic() - self._looked_at >= self._poll / 2:
            self._catch_up()

    def _seen(self, number: int) -> None:
        """Take a hint; our own commits come back as hints too."""
        thread = self._thread
        if number > self._replay.number and thread is not None:
            try:
                thread.submit(self._follow, number)
            except RuntimeError:
                log.debug("a hint came while %s was closing", self.url)

    def _follow(self, number: int) -> None:
        if number > self._replay.number:
            self._catch_up()


async def _done_on(thread: ThreadPoolExecutor, work: Callable[[], R]) -> R:
    try:
        done = asyncio.get_running_loop().run_in_executor(thread, work)
    except RuntimeError:
        # Python exits: threads take no more work, but programs still have last things to say.
        return work()
    return await done
