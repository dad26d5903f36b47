"""Files that are whole or not there: frames with length and checksum, put in place by rename.

A frame is a header and a body. A commit is a file of one frame; a checkpoint is a file of several. What
does not carry the right length and checksum is never half-read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final, cast
from zlib import crc32

from dibs.storage.file.directory import FILE_MODE, FORMAT, too_new

MAGIC: Final = b"dibs"
#: magic, format, commit number, length of the body, and a CRC-32 of those and the body. Every format keeps
#: this header, so that what is newer can be told from what is damaged.
HEADER: Final = Struct("<4sIQQI")
_CHECKED: Final = Struct("<4sIQQ")


class Torn(Exception):
    """A file that is not whole; its text names the file and says what is wrong."""

    def __init__(self, path: str, fault: str = "its length or checksum is wrong") -> None:
        super().__init__(f"{path} is damaged: {fault}")


def frame(number: int, body: bytes) -> bytes:
    """Return a body in its frame."""
    checked = _CHECKED.pack(MAGIC, FORMAT, number, len(body))
    return b"".join((checked, crc32(body, crc32(checked)).to_bytes(4, "little"), body))


def read_frames(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number, body) of each frame of a file. Raises Torn, StorageTooNew and OSError."""
    with _opened(path) as file:
        left = os.fstat(file.fileno()).st_size
        while header := file.read(HEADER.size):
            magic, format_, number, length, checksum = _parse(path, header)
            left -= len(header) + length
            # The length may be anything: what the file cannot hold is not asked for.
            body = file.read(length) if left >= 0 else b""
            if crc32(body, crc32(header[: _CHECKED.size])) != checksum or magic != MAGIC:
                raise Torn(path)
            if format_ > FORMAT:
                raise too_new(Path(path), format_)
            yield number, body


def _opened(path: str) -> BinaryIO:
    """Open a plain file. A link is not followed, and nobody waits for the other end of a FIFO."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Torn(path, "it is a symbolic link, which is not followed") from None
        raise
    try:
        plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    if not plain:
        os.close(descriptor)
        raise Torn(path, "it is no plain file")
    return os.fdopen(descriptor, "rb")


def read_one(path: str, number: int) -> bytes:
    """Return the body of a file of one frame with this number."""
    found = list(read_frames(path))
    if len(found) != 1 or found[0][0] != number:
        raise Torn(path)
    return found[0][1]


def _parse(path: str, header: bytes) -> tuple[bytes, int, int, int, int]:
    if len(header) != HEADER.size:
        raise Torn(path)
    return cast("tuple[bytes, int, int, int, int]", HEADER.unpack(header))


def write_whole(path: str, temporary: str, frames: Iterable[bytes], *, fsync: bool) -> int:
    """Write a file under a temporary name and rename it into place; return its size.

    Until the rename nothing has happened: a failure leaves at most a temporary file, which is removed.
    """
    size = 0
    # O_EXCL would let the leftover of a killed process with our number stop us; O_TRUNC does not.
    # O_NONBLOCK refuses a FIFO that somebody planted, where it would have us wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, FILE_MODE)
    try:
        try:
            for chunk in frames:
                size += _write_all(descriptor, chunk)
            if fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return size


def _write_all(descriptor: int, chunk: bytes) -> int:
    written = os.write(descriptor, chunk)
    while written < len(chunk):
        # A disk that fills up takes part of the bytes first and refuses the rest.
        written += os.write(descriptor, memoryview(chunk)[written:])
    return written


def sync_folder(path: str) -> None:
    """Make the names in a folder survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
