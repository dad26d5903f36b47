"""Space on the disk that is kept for the next checkpoint, so that a full disk can be emptied.

The end of a job writes a commit, too. Only a checkpoint frees the space of jobs that have ended, and it needs
space itself before it can. So a file of the size of the next checkpoint is kept. When the disk is full, steps
that add no jobs remove this file, write their commit and a checkpoint, and create the file again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from dibs.storage.file.directory import RESERVE, Directory

R = TypeVar("R")
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
#: Bytes that the file has at least beyond the next checkpoint, for the commits before it.
SLACK: Final = 32 * 1024


class Reserve:
    """The file `reserve`. The caller holds the commit lock, except for `find`."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        #: Size of the file, in bytes, as this process knows it.
        self.size = 0
        #: True after the file was removed to use its space.
        self.is_spent = False

    def find(self) -> None:
        """Read the size of the file, which another process may have changed."""
        found = self._directory.identity(RESERVE)
        self.size = 0 if found is None else found[2]

    def cover(self, checkpoint: int) -> None:
        """Give the file the size of a checkpoint, in bytes, and more. Raise OSError on a full disk."""
        if checkpoint + SLACK > self.size:
            # A quarter more, so that few steps extend the file.
            self._resize(checkpoint + checkpoint // 4 + 2 * SLACK)
        elif self.size > 4 * (checkpoint + SLACK):
            self._resize(2 * (checkpoint + SLACK))

    def _resize(self, size: int) -> None:
        try:
            self._directory.allocate(RESERVE, size)
        except OSError as error:
            # Without space for the next checkpoint no job is accepted. Any other error concerns this file
            # only, for example a limit on the size of files.
            if error.errno in _FULL:
                raise
            return
        self.size, self.is_spent = size, False

    def spend(self, write: Callable[[], R]) -> R:
        """Call `write`. If the disk is full, remove the file and call it again. Raise OSError."""
        try:
            return write()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with suppress(FileNotFoundError):
                self._directory.remove(RESERVE)
            self.size, self.is_spent = 0, True
            return write()
