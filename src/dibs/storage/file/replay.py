"""Replay of a directory into the index of this process: the checkpoint first, then each commit after it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dibs.storage.file import checkpoint, commits
from dibs.storage.file.directory import Directory
from dibs.storage.file.frames import CorruptFile, read_frame
from dibs.storage.indexed.index import Index, Step

log: Final = logging.getLogger("dibs.storage.file")


class Replay:
    """The index of this process. `number` is the number of the last commit that the index contains."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
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

    def replay_new_commits(self, *, locked: bool) -> Iterator[Step]:
        """Apply the new commits one by one, and yield the step of each. Raises CorruptFile and OSError.

        A power loss may leave a damaged last commit: stop before it. With `locked` (this process holds the
        commit lock), also move the damaged file to `tmp`. Without the lock, another process may just have
        replaced it by a valid commit of the same name.
        """
        while True:
            try:
                body = self._read_commit(self.number + 1, locked=locked)
            except FileNotFoundError:
                if not self._load_newer_checkpoint():
                    return
                continue
            if body is None:
                return
            yield self._apply_commit(body)

    def replay_all_commits(self) -> Iterator[Step]:
        """Apply the checkpoint and all commits to the empty index, and yield the step of each commit.

        Raise CorruptFile if a commit is missing while later commits exist and no newer checkpoint replaces
        it. dibs itself removes a commit only after a checkpoint that contains it is in place, so another
        program removed the file.
        """
        highest = max(self._directory.commit_numbers(), default=0)
        while True:
            before = self.number
            yield from self.replay_new_commits(locked=False)
            if self.number + 1 >= highest:
                return
            if self.number == before:
                raise CorruptFile(
                    self._directory.commit_path(before + 1), "it is missing, but later commits exist"
                )

    def _read_commit(self, number: int, *, locked: bool) -> bytes | None:
        path = self._directory.commit_path(number)
        try:
            return read_frame(path, number)
        except CorruptFile:
            if not self._is_last_commit(number):
                raise
            if locked:
                self._set_aside(path)
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
        index, number, size = checkpoint.read(self._directory)
        self._checkpoint_identity = found
        self.checkpoint_trigger.reset(size)
        if number <= self.number:
            return False
        for name, queue in index.queues.items():
            # Waiters hold tokens (values of work_version) of the old index. A higher version makes each of
            # these tokens report new work.
            queue.work_version += self.index.find_queue(name).work_version + 1
        self.index, self.number, self.reloaded = index, number, True
        return True

    def _is_last_commit(self, number: int) -> bool:
        """Return whether no commit has a higher number, so that no later step depends on this commit."""
        return all(other <= number for other in self._directory.commit_numbers())

    def _set_aside(self, path: str) -> None:
        aside = self._directory.tmp / f"torn-{Path(path).name}"
        os.rename(path, aside)
        log.error(
            "%s is damaged, most likely by a power loss: it was moved to %s, and its step has no effect",
            path,
            aside,
        )
