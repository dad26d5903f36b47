"""Replay of a directory into the index of this process: the checkpoint first, then each commit after it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Final

import msgspec

from dibs.storage.file import checkpoint, commits
from dibs.storage.file.directory import CHECKPOINT, Directory, commit_name
from dibs.storage.file.folder import TMP, CorruptFile, FolderReplaced, Identity
from dibs.storage.file.frames import is_torn, read_frame
from dibs.storage.indexed.index import Index, Step

log: Final = logging.getLogger("dibs.storage.file")
_INCOMPLETE: Final = (
    "it is incomplete, which a power loss cannot cause with fsync=1. If a process without fsync wrote it, "
    "open the folder once without fsync: that moves the file to tmp/, and the jobs of its step are lost"
)
_REMOVED: Final = (
    "it is missing, and the checkpoint does not replace it: another program has removed commits. Restore the "
    "folder from a backup"
)


class Replay:
    """The index of this process. `number` is the number of the last commit that the index contains.

    With `fsync`, each commit was synced before its name appeared. So no power loss leaves an incomplete
    commit, and an incomplete commit is damage.
    """

    def __init__(self, directory: Directory, *, fsync: bool) -> None:
        self._directory = directory
        self._fsync = fsync
        #: The identity of the file of the commit `number`; None before the first replay.
        self._last: Identity | None = None
        self.index = Index()
        self.number = 0
        self.checkpoint_trigger = checkpoint.CheckpointTrigger()
        #: Set when a checkpoint replaced the index; FileStorage clears it.
        self.reloaded = False

    def forget_folder(self) -> None:
        """Read everything at the next replay: the folder is another one. Keep the index until then."""
        self.number, self._last = 0, None

    def count_commit(self, number: int, file: Identity) -> None:
        """Count a commit that this process wrote. The index contains its step already."""
        self.number, self._last = number, file
        self.checkpoint_trigger.add(file[2])

    def replay_new_commits(self, *, locked: bool) -> Generator[Step, None, bool]:
        """Apply the new commits one by one, and yield the step of each. Raises CorruptFile and OSError.

        Stop before incomplete last commits, as a power loss leaves them, and return True in this case. With
        `locked` (this process holds the commit lock), also move these files to `tmp`. Without the lock,
        another process may just have replaced them by valid commits of the same names.
        """
        # Before the next commit, compare the last one. If another program has restored an older state, the
        # next commit belongs to another history.
        if self._last is None or self._last != self._directory.identity(commit_name(self.number)):
            self._load()
        while self._directory.exists(commit_name(self.number + 1)):
            try:
                found = self._read_commit(self.number + 1, locked=locked)
            except FileNotFoundError:
                self._load()  # another process has just replaced the commit by a checkpoint
                continue
            if found is None:
                return True
            yield self._apply_commit(*found)
        return False

    def replay_all_commits(self) -> Generator[Step, None, None]:
        """Apply the checkpoint and all commits to the empty index, and yield the step of each commit.

        Raise CorruptFile if a commit is missing while later commits exist and no newer checkpoint replaces
        it. dibs itself removes a commit only after a checkpoint that contains it is in place, so another
        program removed the file.
        """
        while True:
            before, highest = self.number, max(self._directory.commit_numbers(), default=0)
            torn = yield from self.replay_new_commits(locked=False)
            if torn or self.number >= highest:
                return
            if self.number == before and self._is_missing(before + 1):
                raise CorruptFile(self._path_of(before + 1), "it is missing, but later commits exist")

    def _path_of(self, number: int) -> str:
        return self._directory.path_of(commit_name(number))

    def _is_missing(self, number: int) -> bool:
        """Return whether later commits exist without this one.

        Another process may have moved incomplete commits aside since the last look at the folder.
        """
        numbers = set(self._directory.commit_numbers())
        return number not in numbers and max(numbers, default=0) > number

    def _read_commit(self, number: int, *, locked: bool) -> tuple[bytes, Identity] | None:
        """Return the body of a commit and the identity of its file.

        Return None if it and all later commits are incomplete.
        """
        try:
            return read_frame(self._directory, commit_name(number), number)
        except CorruptFile:
            last = [other for other in self._directory.commit_numbers() if other >= number]
            if not all(is_torn(self._directory, commit_name(other)) for other in last):
                raise
            if self._fsync:
                raise CorruptFile(self._path_of(number), _INCOMPLETE) from None
            if locked:
                # From the highest number down. If this process is killed meanwhile, no gap is left.
                for other in reversed(last):
                    self._set_aside(other)
            return None

    def _apply_commit(self, body: bytes, file: Identity) -> Step:
        try:
            commits.apply(self.index, body)
        except msgspec.DecodeError:
            raise CorruptFile(
                self._path_of(self.number + 1), "this version of dibs cannot decode it"
            ) from None
        self.count_commit(self.number + 1, file)
        return self.index.end_step()

    def _load(self) -> None:
        """Replace the index by the index of the checkpoint; by an empty one if there is no checkpoint.

        Raise FolderReplaced if another program has put an older state in place of the one that was replayed.
        """
        while True:
            found = self._directory.identity(CHECKPOINT)
            index, number = (Index(), 0) if found is None else checkpoint.read(self._directory)
            last = self._directory.identity(commit_name(number))
            if last is not None:
                break
            if found == self._directory.identity(CHECKPOINT):
                if self._last is not None:
                    raise FolderReplaced
                raise CorruptFile(self._path_of(number), _REMOVED)
        if self._last is not None and number <= self.number:
            raise FolderReplaced
        self._replace_index(index)
        self.number, self._last = number, last
        self.checkpoint_trigger.reset(0 if found is None else found[2])

    def _replace_index(self, index: Index) -> None:
        for name, queue in index.queues.items():
            # Waiters hold tokens (values of work_version) of the old index. A higher version makes each of
            # these tokens report new work.
            queue.work_version += self.index.find_queue(name).work_version + 1
        # This process has handed out all numbers up to that of the old index.
        index.number = max(index.number, self.index.number)
        self.reloaded = True
        self.index = index

    def _set_aside(self, number: int) -> None:
        name = commit_name(number)
        aside = f"{TMP}/torn-{number:016x}"
        self._directory.rename(name, aside)
        log.error(
            "%s is incomplete, most likely by a power loss: it was moved to %s, and its step has no effect",
            self._directory.path_of(name),
            self._directory.path_of(aside),
        )
