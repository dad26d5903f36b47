"""How a process comes to know what is in the directory: checkpoint first, then commit after commit."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dibs.storage.file import checkpoint, commits
from dibs.storage.file.directory import Directory
from dibs.storage.file.frames import Torn, read_one
from dibs.storage.indexed.index import Index, Step

log: Final = logging.getLogger("dibs.storage.file")


class Replay:
    """The index up to commit `number`."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._checkpoint: checkpoint.Identity | None = None
        self.index = Index()
        self.number = 0
        self.growth = checkpoint.Growth()
        #: Set when the index was read anew instead of commit by commit.
        self.reloaded = False

    def took(self, number: int, size: int) -> None:
        """Take note of a commit of this process, which is in the index already."""
        self.number = number
        self.growth.add(size)

    def checkpointed(self, size: int) -> None:
        """Take note of a checkpoint of this process."""
        self._checkpoint = checkpoint.identity(self._directory)
        self.growth.reset(size)

    def new_steps(self, *, locked: bool) -> Iterator[Step]:
        """Replay what is new. Raises Torn for a damaged file and OSError for one that can't be read.

        A torn commit at the very end is one that a power loss took: it is passed over, and moved away by
        the next process that holds the lock, for without it the name may be another's good commit by now.
        """
        while True:
            try:
                body = self._read(self.number + 1, locked=locked)
            except FileNotFoundError:
                if not self._newer_checkpoint():
                    return
                continue
            if body is None:
                return
            yield self._apply(body)

    def first_steps(self) -> Iterator[Step]:
        """Replay all there is, for a process that begins; refuse a directory in which a commit is missing.

        A commit is only removed after a checkpoint of it or of a later one is in place. So where one is
        seen, and none before it can be found, not even after that, somebody took it away.
        """
        highest = max(self._directory.numbers(), default=0)
        while True:
            before = self.number
            yield from self.new_steps(locked=False)
            if self.number + 1 >= highest:
                return
            if self.number == before:
                raise Torn(self._directory.commit(before + 1), "it is missing, and later ones are there")

    def _read(self, number: int, *, locked: bool) -> bytes | None:
        path = self._directory.commit(number)
        try:
            return read_one(path, number)
        except Torn:
            if not self._is_last(number):
                raise
            if locked:
                self._set_aside(path)
            return None

    def _apply(self, body: bytes) -> Step:
        try:
            commits.apply(self.index, body)
        except msgspec.DecodeError:
            path = self._directory.commit(self.number + 1)
            raise Torn(path, "it holds what this version cannot read") from None
        self.number += 1
        self.growth.add(len(body))
        return self.index.end_step()

    def _newer_checkpoint(self) -> bool:
        """Read the checkpoint if it is another one than before and further than we are."""
        found = checkpoint.identity(self._directory)
        if found is None or found == self._checkpoint:
            return False
        index, number, size = checkpoint.read(self._directory)
        self._checkpoint = found
        self.growth.reset(size)
        if number <= self.number:
            return False
        for name, queue in index.queues.items():
            # Tokens of waits were given by the old index: none may come to mean "nothing new".
            queue.work += self.index.look(name).work + 1
        self.index, self.number, self.reloaded = index, number, True
        return True

    def _is_last(self, number: int) -> bool:
        """Tell whether no commit stands behind this one: nobody built on it."""
        return all(other <= number for other in self._directory.numbers())

    def _set_aside(self, path: str) -> None:
        aside = self._directory.tmp / f"torn-{Path(path).name}"
        os.rename(path, aside)
        log.error(
            "%s was torn, most likely by a power loss: moved to %s, its step did not happen", path, aside
        )
