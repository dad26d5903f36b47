"""The file storage: each process holds all jobs in an index, and writes each change to a commit file.

A verb returns its result only after its commit file is written. Each process replays the commits of the other
processes. A storage does all of this on one thread. So a slow disk never blocks an event loop, and the index
needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from dibs.errors import (
    ConfigurationError,
    NotRunning,
    OutcomeUnknown,
    StorageDamaged,
    StorageError,
    StorageUnavailable,
)
from dibs.model.findings import Finding
from dibs.model.results import WaitResult
from dibs.storage.addresses import parse_file_path
from dibs.storage.capabilities import Capabilities
from dibs.storage.file import checkpoint, commits, diagnosis
from dibs.storage.file.checkpoint import Reserve
from dibs.storage.file.directory import COMMITS, Directory, commit_name, to_read_error, to_write_error
from dibs.storage.file.folder import CorruptFile, FolderReplaced, Identity
from dibs.storage.file.frames import encode_frame
from dibs.storage.file.listener import CommitWatch
from dibs.storage.file.locks import CommitLock, Turn
from dibs.storage.file.replay import Replay
from dibs.storage.file.step_thread import StepThread
from dibs.storage.indexed import by_id, enqueueing, settling, whole_queue
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.storage import IndexedStorage, P, T, Verb
from dibs.storage.indexed.waiters import (
    Deadline,
    Waiter,
    Wakeups,
    seconds_until_due,
    sleep_until,
    wait_result,
)
from dibs.storage.protocol import Clock
from dibs.storage.registry import check_poll, read_flag, read_options
from dibs.storage.unsent import mark_unsent

log: Final = logging.getLogger("dibs.storage.file")
R = TypeVar("R")
#: Times that one step opens a folder that was replaced meanwhile.
MAX_REOPENS: Final = 5
#: The verbs that add jobs or data. On a full disk they are refused, so that the others can empty it.
_GROWING: Final = frozenset({enqueueing.enqueue, whole_queue.import_, settling.report, by_id.amend})

_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "fsync": read_flag,
    "poll": float,
    "allow_others": read_flag,
}


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> FileStorage:
    """Return the storage for file:PATH. A path without a leading slash starts at the working directory."""
    plain_url, named = read_options(url, _OPTIONS, options)
    return FileStorage(parse_file_path(plain_url), clock=clock, **named)


class FileStorage(IndexedStorage):
    """A storage in a directory, for any number of processes of one machine.

    With `fsync`, each commit survives a power loss; without it, commits survive only the death of processes.
    `poll` is the interval in seconds at which a wait looks for commits, in case their notification was lost.
    With `allow_others`, the directory may belong to another user, and other users may write it.
    """

    capabilities = Capabilities(
        durable=True,
        shared=True,
        cross_queue=True,
        push_wakeups=True,
        manual_clock=True,
        limits=True,
        fair=True,
        output=True,
    )

    def __init__(
        self,
        path: str,
        *,
        clock: Clock = "system",
        fsync: bool = False,
        poll: float = 1.0,
        allow_others: bool = False,
    ) -> None:
        if not hasattr(os, "geteuid"):
            raise ConfigurationError("a file: storage needs Linux or macOS; use Redis or Postgres here")
        super().__init__(clock)
        check_poll(poll)
        for name, flag in (("fsync", fsync), ("allow_others", allow_others)):
            if flag not in (True, False):
                raise ConfigurationError(f"{name} is {flag!r}; it must be True or False")
        if "\0" in path:
            raise ConfigurationError("the path of a file storage holds a NUL character; leave it out")
        if not os.path.isabs(path):
            # Once: a later os.chdir does not change the storage. Path.resolve would follow a link, which may
            # be switched later.
            path = os.path.join(os.getcwd(), path.removeprefix("./"))
        self.url = f"file:{path}"
        self.durability = (
            "power loss: every commit is fsynced"
            if fsync
            else "process crash: commits are not fsynced (?fsync=1 does)"
        )
        self._fsync = fsync
        self._poll = poll
        self._directory = Directory(path, allow_others=allow_others)
        self._reset_state()

    def _reset_state(self) -> None:
        self._lock = CommitLock(self._directory)
        self._replay = Replay(self._directory, fsync=self._fsync)
        self._reserve = Reserve(self._directory)
        self._wakeups = Wakeups()
        self._watch: CommitWatch | None = None
        self._thread: StepThread | None = None
        self._last_catch_up = 0.0

    async def diagnose(self) -> list[Finding]:
        """Examine the folder; see dibs.storage.abilities.Diagnosis."""
        return await asyncio.to_thread(diagnosis.diagnose, self._directory, fsync=self._fsync)

    # -- open and close ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Create or open the directory, and replay its checkpoint and commits."""
        if self._is_forked:
            # The parent's thread does not exist in this process, and its state may be half changed.
            self._reset_state()
        self._thread = StepThread("dibs-file")
        self._open, self._process = True, os.getpid()
        try:
            await self._run_on_thread(self._load_directory)
        except BaseException:
            await self.close()
            raise

    def _load_directory(self) -> None:
        """Read the folder that the path names. If another program replaces it meanwhile, read the new one."""
        for _ in range(MAX_REOPENS - 1):
            place = self._directory.place()
            try:
                return self._load_folder()
            except FolderReplaced:
                self._replay.forget_folder()
            except StorageError:
                # The files of a folder that is being removed look like a damaged storage.
                if self._directory.place() == place:
                    raise
                self._replay.forget_folder()
        try:
            return self._load_folder()
        except FolderReplaced:
            raise self._replaced_again_and_again() from None

    def _load_folder(self) -> None:
        created = self._directory.prepare()
        if created and self._fsync:
            self._sync_parent()
        self._reserve.find()
        self._apply_steps(self._replay.replay_all_commits())

    def _sync_parent(self) -> None:
        try:
            parent = os.open(self._directory.root.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
        except OSError as error:
            raise to_write_error(error, f"cannot make {self._directory.path} durable") from error

    def _reopen(self) -> None:
        """Open the folder that the path names now, in place of the one that this process has open."""
        if self._directory.is_open:
            log.warning(
                "another program has removed or replaced %s, or files in it: the storage is opened again, "
                "with the jobs that are there now. Leases of the former folder are lost",
                self._directory.path,
            )
        self._release_folder()
        self._replay.forget_folder()
        self._load_directory()

    async def close(self) -> None:
        """Stop the thread and the watch. Pending waits raise NotRunning."""
        self._open = False
        thread, self._thread = self._thread, None
        if thread is None or self._is_forked:
            return
        await thread.run(self._release_folder)
        thread.stop()

    def _release_folder(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._lock.close()
        self._directory.close()
        self._wakeups.wake_all()

    async def _run_on_thread(self, work: Callable[[], R]) -> R:
        self._check_open()
        if self._thread is None:
            raise NotRunning(f"{self.url} is not open")
        return await self._thread.run(work)

    # -- steps ---------------------------------------------------------------------------------------

    async def _run_step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        turn = Turn()
        try:
            return await self._run_on_thread(
                lambda: self._run_and_commit(
                    now, lambda index: verb(index, *args, **kwargs), turn, grows=verb in _GROWING
                )
            )
        except asyncio.CancelledError as error:
            if turn.take():
                mark_unsent(error, self._lock.waits_for)
            raise

    async def _run_read(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def look() -> T:
            self._catch_up()
            return verb(self._index_at_time(now), *args, **kwargs)

        try:
            return await self._run_on_thread(look)
        except asyncio.CancelledError as error:
            mark_unsent(error, self._lock.waits_for)
            raise

    def _index_at_time(self, now: int | None) -> Index:
        """Return the index, with its clock advanced to the time of this step."""
        index = self._replay.index
        if self._advance_clock(index, now):
            self._wakeups.wake_all()
        return index

    def _run_and_commit(self, now: int | None, verb: Callable[[Index], T], turn: Turn, *, grows: bool) -> T:
        """Under the commit lock, replay the commits of other processes, run a verb, and write its commit.

        Raise CancelledError if the caller has given up its turn.
        """

        def step() -> T:
            index = self._index_at_time(now)
            number = index.number
            answer, changes = index.run_step(verb)
            if changes:
                self._write_commit(index, changes, number, grows=grows)
            return answer

        return self._run_locked(turn, step)

    def _run_locked(self, turn: Turn, work: Callable[[], R]) -> R:
        """Run `work` under the commit lock of the folder that the path names now, on its newest state."""
        for _ in range(MAX_REOPENS):
            with suppress(FolderReplaced), self._lock.hold(turn):
                # A further attempt needs no turn of the caller: this step has taken it.
                turn = Turn()
                self._catch_up(locked=True)
                if self._directory.is_copy():
                    # The identity last: after a kill between the two, the numbers jump again.
                    with (index := self._replay.index).jump():
                        self._write_commit(index, [], index.number, grows=False)
                    self._directory.claim_identity()
                return work()
            self._reopen()
        raise self._replaced_again_and_again()

    def _replaced_again_and_again(self) -> StorageUnavailable:
        return StorageUnavailable(f"{self._directory.path} is replaced again and again; nothing was written")

    def _write_commit(self, index: Index, step: Step, number: int, *, grows: bool) -> None:
        """Write the commit of a step. If the write fails, undo the step in the index and raise.

        With `grows`, the step adds jobs or data: it needs space for itself and for the next checkpoint.
        """
        replay, directory = self._replay, self._directory
        commit_number = replay.number + 1
        try:
            body = encode_frame(commit_number, commits.encode(index, step))

            def write() -> Identity:
                return directory.write(commit_name(commit_number), [body], fsync=self._fsync)

            if grows:
                self._reserve.cover(replay.checkpoint_trigger.most_bytes + len(body))
                written = write()
            else:
                written = self._reserve.spend(write)
        except BaseException as error:
            index.undo(step, number)
            if isinstance(error, OSError):
                if self._reserve.is_spent:
                    with suppress(OSError):
                        self._reserve.cover(replay.checkpoint_trigger.most_bytes)
                raise to_write_error(error, f"cannot commit to {directory.path}") from error
            raise
        replay.count_commit(commit_number, written)
        self._wakeups.notify(step)
        if self._fsync:
            self._sync_commits()
        if replay.checkpoint_trigger.is_due or self._reserve.is_spent:
            self._write_checkpoint()

    def _sync_commits(self) -> None:
        try:
            self._directory.sync(COMMITS)
        except OSError as error:
            # Every other process sees the commit, but its file name may not survive a power loss.
            raise OutcomeUnknown(
                f"the step is committed to {self.url}, but may not survive power loss: "
                f"fsync of the folder failed ({error.strerror})"
            ) from error

    def _write_checkpoint(self) -> None:
        replay = self._replay
        try:
            size = self._reserve.spend(lambda: checkpoint.write(self._directory, replay.index, replay.number))
        except OSError as error:
            # No data is lost: the commits are still there, and a checkpoint only makes opening faster.
            log.warning(
                "cannot write a checkpoint of %s (%s); a later commit tries again", self.url, error.strerror
            )
            replay.checkpoint_trigger.postpone()
            return
        replay.checkpoint_trigger.reset(size)
        with suppress(OSError):
            self._reserve.cover(size)

    async def compact(self) -> None:
        """Write a checkpoint now, and remove the commits that it replaces."""
        turn = Turn()
        try:
            await self._run_on_thread(lambda: self._compact(turn))
        except asyncio.CancelledError as error:
            if turn.take():
                mark_unsent(error, self._lock.waits_for)
            raise

    def _compact(self, turn: Turn) -> None:
        self._run_locked(turn, self._write_checkpoint)

    def _catch_up(self, *, locked: bool = False) -> None:
        """Replay the commits of other processes, and wake the waiters that they concern."""
        self._last_catch_up = time.monotonic()
        if locked:
            # The folder was compared when the lock was taken.
            self._apply_steps(self._replay.replay_new_commits(locked=True))
            return
        with suppress(FolderReplaced):
            if self._directory.is_current():
                self._apply_steps(self._replay.replay_new_commits(locked=False))
                return
        self._reopen()

    def _damaged_error(self, damage: CorruptFile) -> StorageDamaged:
        later = None
        with suppress(OSError):
            later = self._directory.count_commits_after(damage.path)
        extent = f" later commits: {later:,};" if later is not None else ""
        return StorageDamaged(f"{damage};{extent} `dibs doctor` says what to do")

    def _apply_steps(self, steps: Iterator[Step]) -> None:
        try:
            for step in steps:
                self._wakeups.notify(step)
        except CorruptFile as damage:
            raise self._damaged_error(damage) from None
        except OSError as error:
            raise to_read_error(error, f"cannot read {self._directory.path}") from error
        if self._replay.reloaded:
            self._replay.reloaded = False
            self._reserve.find()
            self._wakeups.wake_all_after_gap()

    # -- waiting -------------------------------------------------------------------------------------

    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        deadline = Deadline(timeout)
        try:
            woken, due = await self._run_on_thread(lambda: self._add_waiter(waiter, since))
            while not woken and not deadline.passed:
                woken = await sleep_until(waiter, deadline.remaining, due.remaining, self._poll) or due.passed
                if not woken:
                    await self._run_on_thread(self._poll_commits)
                    woken = waiter.woken
        finally:
            # The caller may be cancelled while `_add_waiter` runs on the thread. The thread runs its work in
            # order, so this `remove` follows the `add` of `_add_waiter`.
            if self._thread is not None:
                self._thread.submit(lambda: self._wakeups.remove(waiter))
        if not self._open:
            raise NotRunning(f"{self.url} was closed")
        return await self._run_on_thread(
            lambda: wait_result(self._wakeups, self._replay.index, waiter, woken=woken)
        )

    def _add_waiter(self, waiter: Waiter, since: Mapping[str, str]) -> tuple[bool, Deadline]:
        if self._watch is None:
            self._watch = CommitWatch(self._directory, self._on_commit_seen)
            self._watch.start()
        self._catch_up()
        index = self._index_at_time(None)
        self._wakeups.add(waiter)
        due = Deadline(None if self._manual else seconds_until_due(index, waiter))
        return self._wakeups.has_changed(waiter, index, since), due

    def _poll_commits(self) -> None:
        # With many waits at once, the first wait that polls reads the new commits for all of them.
        if time.monotonic() - self._last_catch_up >= self._poll / 2:
            self._catch_up()

    def _on_commit_seen(self, number: int) -> None:
        """Read a new commit that the watch reports, unless this process has applied or written it already."""
        thread = self._thread
        if number > self._replay.number and thread is not None:
            thread.submit(lambda: self._catch_up_to(number))

    def _catch_up_to(self, number: int) -> None:
        if number > self._replay.number:
            self._catch_up()
