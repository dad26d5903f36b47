"""Replay of a directory into the index of this process: the checkpoint first, then each commit after it."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import msgspec

from dibs.storage.file import checkpoint, commits
from dibs.storage.file.access import CorruptFile
from dibs.storage.file.directory import Directory
from dibs.storage.file.frames import is_torn, read_frame
from dibs.storage.indexed.index import Index, Step

log: Final = logging.getLogger("dibs.storage.file")
_INCOMPLETE: Final = (
    "it is incomplete, which a power loss cannot cause with fsync=1. If a process without fsync wrote it, "
    "open the folder once without fsync: that moves the file to tmp/, and the jobs of its step are lost"
)


class Replay:
    """The index of this process. `number` is the number of the last commit that the index contains.

    With `fsync`, each commit was synced before its name appeared. So no power loss leaves an incomplete
    commit, and an incomplete commit is damage.
    """

    def __init__(self, directory: Directory, *, fsync: bool) -> None:
        self._directory = directory
        self._fsync = fsync
        self._checkpoint_identity: checkpoint.Identity | None = None
        self.index = Index()
        self.number = 0
        self.checkpoint_trigger = checkpoint.CheckpointTrigger()
        #: Set when a newer checkpoint replaced the index; FileStorage clears it.
        self.reloaded = False

    def count_commit(self, number: int, size: int) -> None:
        """Count a commit of `size` bytes that this process wrote. The index contains its step already."""
        self.number = number
        self.checkpoint_trigger.add(size)

    def record_checkpoint(self, size: int) -> None:
        """Record the identity and size of a checkpoint that this process wrote."""
        self._checkpoint_identity = checkpoint.file_identity(self._directory)
        self.checkpoint_trigger.reset(size)

    def replay_new_commits(self, *, locked: bool) -> Generator[Step, None, bool]:
        """Apply the new commits one by one, and yield the step of each. Raises CorruptFile and OSError.

        Stop before incomplete last commits, as a power loss leaves them, and return True in this case. With
        `locked` (this process holds the commit lock), also move these files to `tmp`. Without the lock,
        another process may just have replaced them by valid commits of the same names.
        """
        while True:
            if not _exists(self._directory.commit_path(self.number + 1)):
                if not self._load_newer_checkpoint():
                    return False
                continue
            try:
                body = self._read_commit(self.number + 1, locked=locked)
            except FileNotFoundError:
                continue  # another process has just replaced the commit by a checkpoint
            if body is None:
                return True
            yield self._apply_commit(body)

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
                raise CorruptFile(
                    self._directory.commit_path(before + 1), "it is missing, but later commits exist"
                )

    def _is_missing(self, number: int) -> bool:
        """Return whether later commits exist without this one.

        Another process may have moved incomplete commits aside since the last look at the folder.
        """
        numbers = set(self._directory.commit_numbers())
        return number not in numbers and max(numbers, default=0) > number

    def _read_commit(self, number: int, *, locked: bool) -> bytes | None:
        """Return the body of a commit, or None if it and all later ones are incomplete."""
        path = self._directory.commit_path(number)
        try:
            return read_frame(path, number)
        except CorruptFile:
            last = sorted(other for other in self._directory.commit_numbers() if other >= number)
            if not all(is_torn(self._directory.commit_path(other)) for other in last):
                raise
            if self._fsync:
                raise CorruptFile(path, _INCOMPLETE) from None
            if locked:
                # From the highest number down. If this process is killed meanwhile, no gap is left.
                for other in reversed(last):
                    self._set_aside(self._directory.commit_path(other))
            return None

    def _apply_commit(self, body: bytes) -> Step:
        try:
            commits.apply(self.index, body)
        except msgspec.DecodeError:
            path = self._directory.commit_path(self.number + 1)
            raise CorruptFile(path, "this version of dibs cannot decode it") from None
        self.number += 1
        self.checkpoint_trigger.add(len(body))
        return self.index.end_step()

    def _load_newer_checkpoint(self) -> bool:
        """Replace the index by the checkpoint's index if that is newer. Return whether it was replaced."""
        found = checkpoint.file_identity(self._directory)
        if found is None or found == self._checkpoint_identity:
            return False
        index, number = checkpoint.read(self._directory)
        self._checkpoint_identity = found
        _, _, size = found
        self.checkpoint_trigger.reset(size)
        if number <= self.number:
            return False
        for name, queue in index.queues.items():
            # Waiters hold tokens (values of work_version) of the old index. A higher version makes each of
            # these tokens report new work.
            queue.work_version += self.index.find_queue(name).work_version + 1
        self.index, self.number, self.reloaded = index, number, True
        return True

    def _set_aside(self, path: str) -> None:
        aside = self._directory.tmp / f"torn-{Path(path).name}"
        os.rename(path, aside)
        log.error(
            "%s is incomplete, most likely by a power loss: it was moved to %s, and its step has no effect",
            path,
            aside,
        )


def _exists(path: str) -> bool:
    """Return whether a file exists. Most steps find no new commit; a failing open() takes 3 times as long."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True
