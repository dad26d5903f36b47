"""Checkpoints, each the whole index in one file that replaces the commits before it, and the space for them.

A process writes a checkpoint while it holds the commit lock. So the checkpoint contains exactly the commits
up to its number. The process then removes the files of the commits before that number. The last one stays: a
checkpoint without it shows that another program has removed commits.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
from attrs import define

from dibs.storage.file import commits
from dibs.storage.file.directory import CHECKPOINT, COMMITS, RESERVE, Directory, commit_name
from dibs.storage.file.folder import CorruptFile
from dibs.storage.file.frames import encode_frame, read_frames
from dibs.storage.indexed.index import Index

#: A checkpoint is due once the commits since the last checkpoint exceed both this size and the size of that
#: checkpoint.
MIN_COMMIT_BYTES: Final = 4 * 1024 * 1024
#: A checkpoint is also due after this many commits, because each commit file takes an inode and a block.
MAX_COMMITS: Final = 4096

#: Body of the last frame. A checkpoint without it lost its tail between two frames and is damaged.
END: Final = b""


@define
class CheckpointTrigger:
    """A count of the commits since the last checkpoint, which decides when the next checkpoint is due."""

    #: Size of the last checkpoint, bytes.
    checkpoint_bytes: int = 0
    #: Size of all commits since the last checkpoint, bytes.
    commit_bytes: int = 0
    #: Number of commits since the last checkpoint.
    commits: int = 0

    def add(self, size: int) -> None:
        self.commit_bytes += size
        self.commits += 1

    def postpone(self) -> None:
        """Restart the count after a failed checkpoint. Otherwise every further commit would try it again."""
        self.commit_bytes = self.commits = 0

    def reset(self, size: int) -> None:
        """Restart the count after a checkpoint of `size` bytes was written or read."""
        self.checkpoint_bytes, self.commit_bytes, self.commits = size, 0, 0

    @property
    def most_bytes(self) -> int:
        """An upper bound of the size of the next checkpoint."""
        return self.checkpoint_bytes + self.commit_bytes

    @property
    def is_due(self) -> bool:
        """True if the next checkpoint pays: it writes at most as much as was committed since the last one.

        The limit on the number of commits grows with the checkpoint too. With a fixed limit, every few
        thousand small commits would rewrite a checkpoint of a million waiting jobs.
        """
        return self.commit_bytes > max(MIN_COMMIT_BYTES, self.checkpoint_bytes) or self.commits > max(
            MAX_COMMITS, self.checkpoint_bytes // 4096
        )


def write(directory: Directory, index: Index, number: int) -> int:
    """Write the index as the checkpoint of commit `number`, and return its size in bytes.

    Then remove the commits before that number.
    """
    # Sync files and folders even without the `fsync` option. Otherwise a power loss could leave a checkpoint
    # full of zeros, or none, after the commits that it replaces are removed, or remove the last commit, too.
    directory.sync(commit_name(number))
    directory.sync(COMMITS)
    _, _, size = directory.write(CHECKPOINT, _encode_frames(index, number), fsync=True)
    directory.sync()
    remove_commits(directory, number)
    return size


def _encode_frames(index: Index, number: int) -> Iterator[bytes]:
    for body in commits.snapshot(index):
        yield encode_frame(number, body)
    yield encode_frame(number, END)


def remove_commits(directory: Directory, before: int) -> None:
    """Remove the commit files before a number, in ascending order, up to the first that cannot be removed.

    Readers rely on the order: if commit n exists and n + 1 does not, then nobody has written n + 1. A failed
    removal raises no error: the files are harmless, and the next checkpoint removes them.
    """
    with suppress(OSError):
        for number in directory.commit_numbers():
            if number < before:
                directory.remove(commit_name(number))


def read(directory: Directory) -> tuple[Index, int]:
    """Return the checkpoint's index and its commit number. Raises CorruptFile."""
    index, path, number = Index(), directory.path_of(CHECKPOINT), 0
    frames = read_frames(directory, CHECKPOINT)
    for number, body in frames:  # noqa: B007 - each frame carries the same number
        if body == END:
            break
        _apply_body(index, body, path)
    else:
        raise CorruptFile(path, "its last frame is missing")
    if next(frames, None) is not None:
        raise CorruptFile(path, "there is data after its last frame")
    index.end_step()
    return index, number


def _apply_body(index: Index, body: bytes, path: str) -> None:
    try:
        commits.apply(index, body)
    except msgspec.DecodeError as error:
        raise CorruptFile(path, f"this version of dibs cannot decode it ({error})") from None


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
