"""The result of a demo job: the digest of a file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from msgspec import Struct

#: Bytes of one read, 1 MiB.
CHUNK_SIZE = 1 << 20


class Digest(Struct, frozen=True, gc=False):
    """The content of a file as its job read it. The outcome of the job keeps it for ever."""

    size: int
    mtime_ns: int
    lines: int
    sha256: str


def compute_digest(path: str) -> Digest:
    """Read a file in chunks, and return its digest. `mtime_ns` is read when the file is opened."""
    digest, lines, size, last = hashlib.sha256(), 0, 0, b"\n"
    with Path(path).open("rb", buffering=0) as file:
        about = os.fstat(file.fileno())
        while piece := file.read(CHUNK_SIZE):
            digest.update(piece)
            lines += piece.count(b"\n")
            size += len(piece)
            last = piece[-1:]
    # Count a last line that has no newline.
    return Digest(size, about.st_mtime_ns, lines + (last != b"\n"), digest.hexdigest())


def verify_digest(path: str, stored: Digest) -> str:
    """Compute the digest of a file again; return a message if the job's digest is wrong, otherwise "".

    Also return "" if the file was changed or removed after its job had read it.
    """
    try:
        with Path(path).open("rb") as file:
            about = os.fstat(file.fileno())
            direct = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
    if direct == stored.sha256 or (about.st_size, about.st_mtime_ns) != (stored.size, stored.mtime_ns):
        return ""
    return f"{path}: the job computed {stored.sha256[:12]}..., a second computation {direct[:12]}..."
