"""When the commits so far are put together into one file, and how it is found again.

A checkpoint is written under the lock, so it stands for exactly the commits up to its number; those are
removed once it is in place. A process that looks for a commit and finds neither it nor a newer checkpoint
is up to date.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from dibs.storage.file import commits
from dibs.storage.file.directory import Directory
from dibs.storage.file.frames import HEADER, Torn, frame, read_frames, sync_folder, write_whole
from dibs.storage.indexed.index import Index

#: Commits are put together once they take this many bytes, or as many as the last checkpoint.
LEAST_BYTES: Final = 4 * 1024 * 1024
#: Or once there are this many of them: each is an inode and a block.
MOST_COMMITS: Final = 4096

#: The body of the last frame: a checkpoint that lost its tail between two frames is not taken for whole.
END: Final = b""

#: Tells one checkpoint file from the next without reading it.
Identity = tuple[int, int, int]


class Growth:
    """How much has been committed since the last checkpoint."""

    def __init__(self) -> None:
        self.last = 0
        self.bytes = 0
        self.commits = 0

    def add(self, size: int) -> None:
        """Count a commit."""
        self.bytes += size
        self.commits += 1

    def put_off(self) -> None:
        """Try again after as much again: a disk that is full takes no checkpoint at every commit."""
        self.bytes = self.commits = 0

    def reset(self, size: int) -> None:
        """Begin again after a checkpoint of this size."""
        self.last, self.bytes, self.commits = size, 0, 0

    @property
    def enough(self) -> bool:
        """Whether a checkpoint pays: it costs at most what was written since the last one.

        The number of commits counts by the size of the last checkpoint too, or else a million waiting
        jobs would be written anew for every few thousand small commits.
        """
        return self.bytes > max(LEAST_BYTES, self.last) or self.commits > max(MOST_COMMITS, self.last // 4096)


def identity(directory: Directory) -> Identity | None:
    """Return which checkpoint is in place; None for none."""
    try:
        found = os.stat(directory.checkpoint, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write(directory: Directory, index: Index, number: int, *, fsync: bool) -> int:
    """Put a checkpoint of commit `number` in place, remove the commits it stands for; return its size."""
    temporary = f"{directory.tmp}/checkpoint"
    # Without fsync a power loss could leave a checkpoint of zeros where the commits it replaced are gone.
    size = write_whole(str(directory.checkpoint), temporary, _frames(index, number), fsync=True)
    if fsync:
        sync_folder(str(directory.root))
    remove_commits(directory, number)
    return size


def _frames(index: Index, number: int) -> Iterator[bytes]:
    for body in commits.whole(index):
        yield frame(number, body)
    yield frame(number, END)


def remove_commits(directory: Directory, through: int) -> None:
    """Remove commits up to a number; what can't be removed now is removed next time."""
    with suppress(OSError):
        for number in directory.numbers():
            if number <= through:
                with suppress(OSError):
                    os.unlink(directory.commit(number))


def read(directory: Directory) -> tuple[Index, int, int]:
    """Return the index in the checkpoint, the number of its commit, and its size. Raises Torn."""
    index, path = Index(), str(directory.checkpoint)
    number, size = 0, 0
    frames = read_frames(path)
    for number, body in frames:  # noqa: B007 - each frame has the same
        size += HEADER.size + len(body)
        if body == END:
            break
        _apply(index, body, path)
    else:
        raise Torn(path, "it ends before its end")
    if next(frames, None) is not None:
        raise Torn(path, "it goes on behind its end")
    index.end_step()
    return index, number, size


def _apply(index: Index, body: bytes, path: str) -> None:
    try:
        commits.apply(index, body)
    except msgspec.DecodeError as error:
        raise Torn(path, f"it holds what this version cannot read ({error})") from None
