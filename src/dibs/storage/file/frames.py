"""Atomic files of checksummed frames: a reader sees the complete file or no file.

A frame is a header and a body; the header carries the length and a checksum. A commit is a file of one frame,
a checkpoint a file of several frames. A writer renames a complete file into place, and a reader refuses a
frame with a wrong length or checksum.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, cast
from zlib import crc32

from dibs.storage.file.access import CorruptFile, open_regular_file
from dibs.storage.file.directory import FILE_MODE, FORMAT, newer_format_error

MAGIC: Final = b"dibs"
#: Magic, format, commit number, length of the body in bytes, and a CRC-32 of these four and the body. Every
#: format keeps this header, so that a reader can distinguish a newer file from a damaged one.
HEADER: Final = Struct("<4sIQQI")
_CHECKED: Final = Struct("<4sIQQ")
#: Size in bytes of the smallest block that a disk writes as a whole. Larger blocks are multiples of it.
BLOCK: Final = 512
#: A shorter last block does not count as zeros, because an intact commit may end in a few zeros.
MIN_ZEROS: Final = 32


def encode_frame(number: int, body: bytes) -> bytes:
    checked = _CHECKED.pack(MAGIC, FORMAT, number, len(body))
    return b"".join((checked, crc32(body, crc32(checked)).to_bytes(4, "little"), body))


def read_frames(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield (commit number, body) of each frame of a file. Raises CorruptFile, StorageTooNew and OSError."""
    with open_regular_file(path) as file:
        left = os.fstat(file.fileno()).st_size
        while header := file.read(HEADER.size):
            magic, format_, number, length, checksum = _unpack_header(path, header)
            left -= len(header) + length
            # A damaged header may carry any length: read no body that is longer than the rest of the file.
            body = file.read(length) if left >= 0 else b""
            if crc32(body, crc32(header[: _CHECKED.size])) != checksum or magic != MAGIC:
                raise CorruptFile(path)
            if format_ > FORMAT:
                raise newer_format_error(Path(path), format_)
            yield number, body


def read_frame(path: str, number: int) -> bytes:
    """Return the body of a file of exactly one frame.

    Raises CorruptFile if the frame has another commit number, and the errors of `read_frames`.
    """
    found = list(read_frames(path))
    if len(found) != 1 or found[0][0] != number:
        raise CorruptFile(path)
    return found[0][1]


def is_torn(path: str) -> bool:
    """Return whether a damaged file of one frame may be an unsynced file after a power loss.

    A power loss leaves such a file too short, or with zeros in place of whole blocks. A complete file with a
    wrong byte has another cause. Raises CorruptFile for a file that is not regular, and OSError.
    """
    with open_regular_file(path) as file:
        content = file.read()
    if len(content) < HEADER.size or _has_zero_block(content):
        return True
    magic, format_, number, length, checksum = _unpack_header(path, content[: HEADER.size])
    body = content[HEADER.size :]
    if magic != MAGIC or length <= len(body):
        return False
    # If the checksum fits the length of the file, the body is complete and only the header is wrong.
    return crc32(body, crc32(_CHECKED.pack(magic, format_, number, len(body)))) != checksum


def _has_zero_block(content: bytes) -> bool:
    blocks = (content[start : start + BLOCK] for start in range(0, len(content), BLOCK))
    return any(not any(block) for block in blocks if len(block) >= MIN_ZEROS)


def _unpack_header(path: str, header: bytes) -> tuple[bytes, int, int, int, int]:
    if len(header) != HEADER.size:
        raise CorruptFile(path)
    return cast("tuple[bytes, int, int, int, int]", HEADER.unpack(header))


def write_atomically(path: str, temporary: str, frames: Iterable[bytes], *, fsync: bool) -> int:
    """Write `frames` to the file `temporary`, rename it to `path`, and return its size in bytes.

    Other processes see the complete file or, if a write fails, no change. A failed write leaves no temporary
    file. With `fsync`, the content survives a power loss; see fsync_folder for the name of the file.
    """
    size = 0
    # A killed process may have left a temporary file of this name. O_TRUNC overwrites it; O_EXCL would fail.
    # O_NONBLOCK fails at once on a FIFO under this name; without it, open() would wait for a reader.
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
        # A disk that fills up writes a part of the bytes first; the next write raises the error.
        written += os.write(descriptor, memoryview(chunk)[written:])
    return written
