"""Helpers for tests of the file storage: fill, read and damage a directory."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.file import FileStorage


def opened(root: Path, **options: Any) -> FileStorage:
    return FileStorage(str(root), clock="manual", **options)


def request(id: str, payload: bytes = b"", **rest: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload), **rest))


async def fill(root: Path, *ids: str, now: int = 1000, **options: Any) -> None:
    """Commit an enqueue for each id."""
    async with opened(root, **options) as storage:
        for id in ids:
            await storage.enqueue("q", [request(id)], now=now)


async def ids_in(root: Path, **options: Any) -> list[str]:
    """Return the waiting ids that a storage sees when it opens the directory now."""
    async with opened(root, **options) as storage:
        return sorted(id for id, _ in (await storage.list("q", "waiting", limit=100_000)).items)


def commit(root: Path, number: int) -> Path:
    return root / "commits" / f"{number:016x}"


def commits(root: Path) -> list[int]:
    """Return the numbers of the commit files, sorted."""
    return sorted(int(name, 16) for name in names(root / "commits"))


def cut(path: Path, length: int) -> None:
    """Truncate a file, as a power loss may do."""
    os.truncate(path, length)


def flip(path: Path, index: int = -1) -> None:
    """Invert one byte of a file."""
    content = bytearray(path.read_bytes())
    content[index] ^= 0xFF
    path.write_bytes(content)


def place(kind: str, path: Path) -> None:
    """Create something else than a regular file: a `link`, `fifo`, `folder` or `device`."""
    match kind:
        case "link":
            path.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            # Like a device, a socket is no regular file, and a test without privileges can create it.
            with socket.socket(socket.AF_UNIX) as bound:
                os.chdir(path.parent)
                bound.bind(path.name)


def names(folder: Path) -> list[str]:
    """Return the sorted names in a folder."""
    return sorted(path.name for path in folder.iterdir())
