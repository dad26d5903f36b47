"""Atomic files of checksummed frames: a reader sees the complete file or no file.

A frame is a header and a body; the header carries the length and a checksum. A commit is a file of one frame,
a checkpoint a file of several frames. A writer renames a complete file into place, and a reader refuses a
frame with a wrong length or checksum.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO, Final, cast
from zlib import crc32

from dibs.storage.file.directory import FORMAT, newer_format_error
from dibs.storage.file.folder import CorruptFile, Folder, Identity, identity_of

MAGIC: Final = b"dibs"
#: Magic, format, commit number, length of the body in bytes, and a CRC-32 of these four and the body. Every
#: format keeps this header, so that a reader can distinguish a newer file from a damaged one.
HEADER: Final = Struct("<4sIQQI")
_CHECKED: Final = Struct("<4sIQQ")
#: Size in bytes of the smallest block that a disk writes as a whole. Larger blocks are multiples of it.
BLOCK: Final = 512
#: A shorter last block does not count as zeros, because an intact commit may end in a few zeros.
MIN_ZEROS: Final = 32
#: Bytes that are read at a time to check a file.
CHUNK: Final = 1 << 20
#: Size in bytes above which a body is checked before it is read into memory. A file with a hole may have any
#: size, and no content.
MAX_UNCHECKED: Final = 64 << 20


def encode_frame(number: int, body: bytes) -> bytes:
    checked = _CHECKED.pack(MAGIC, FORMAT, number, len(body))
    return b"".join((checked, crc32(body, crc32(checked)).to_bytes(4, "little"), body))


def read_frames(folder: Folder, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (commit number, body) of each frame of a file. Raises CorruptFile, StorageTooNew and OSError."""
    with folder.read(name) as file:
        yield from _frames_of(file, folder.path_of(name))


def read_frame(folder: Folder, name: str, number: int) -> tuple[bytes, Identity]:
    """Return the body of a file of exactly one frame, and the identity of the file.

    Raises CorruptFile if the frame has another commit number, and the errors of `read_frames`.
    """
    with folder.read(name) as file:
        identity = identity_of(os.fstat(file.fileno()))
        found = list(_frames_of(file, folder.path_of(name)))
    if len(found) != 1 or found[0][0] != number:
        raise CorruptFile(folder.path_of(name))
    return found[0][1], identity


def _frames_of(file: BinaryIO, path: str) -> Iterator[tuple[int, bytes]]:
    left = os.fstat(file.fileno()).st_size
    while header := file.read(HEADER.size):
        magic, format_, number, length, checksum = _unpack_header(path, header)
        left -= len(header) + length
        checked = crc32(header[: _CHECKED.size])
        # A damaged header may carry any length: read no body that is longer than the rest of the file.
        if (
            left < 0
            or magic != MAGIC
            or (length > MAX_UNCHECKED and _checksum(file, length, checked) != checksum)
        ):
            raise CorruptFile(path)
        body = file.read(length)
        if crc32(body, checked) != checksum:
            raise CorruptFile(path)
        if format_ > FORMAT:
            raise newer_format_error(path, format_)
        yield number, body


def _checksum(file: BinaryIO, length: int, checked: int) -> int:
    """Return the checksum of the next `length` bytes of a file, which stays at its position."""
    start = file.tell()
    for size in range(0, length, CHUNK):
        checked = crc32(file.read(min(CHUNK, length - size)), checked)
    file.seek(start)
    return checked


def is_torn(folder: Folder, name: str) -> bool:
    """Return whether a damaged file of one frame may be an unsynced file after a power loss.

    A power loss leaves such a file too short, or with zeros in place of whole blocks. A complete file with a
    wrong byte has another cause. Raises CorruptFile for a file that is not regular, and OSError.
    """
    with folder.read(name) as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEADER.size or _has_zero_block(file):
            return True
        file.seek(0)
        magic, format_, number, length, checksum = _unpack_header(name, file.read(HEADER.size))
        body_size = size - HEADER.size
        if magic != MAGIC or length <= body_size:
            return False
        # If the checksum fits the length of the file, the body is complete and only the header is wrong.
        return _checksum(file, body_size, crc32(_CHECKED.pack(magic, format_, number, body_size))) != checksum


def _has_zero_block(file: BinaryIO) -> bool:
    while chunk := file.read(CHUNK):
        blocks = (chunk[start : start + BLOCK] for start in range(0, len(chunk), BLOCK))
        if any(not any(block) for block in blocks if len(block) >= MIN_ZEROS):
            return True
    return False


def _unpack_header(path: str, header: bytes) -> tuple[bytes, int, int, int, int]:
    if len(header) != HEADER.size:
        raise CorruptFile(path)
    return cast("tuple[bytes, int, int, int, int]", HEADER.unpack(header))
