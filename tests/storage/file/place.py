"""A directory to try things on: filled, read anew, damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dibs.model.job import JobData, NewJob, Slot
from dibs.model.requests import EnqueueRequest
from dibs.storage.file import FileStorage


def opened(root: Path, **options: Any) -> FileStorage:
    return FileStorage(str(root), clock="manual", **options)


def request(id: str, payload: bytes = b"", **rest: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload), **rest))


async def fill(root: Path, *ids: str, now: int = 1000) -> None:
    """Commit an enqueue for each id."""
    async with opened(root) as storage:
        for id in ids:
            await storage.enqueue("q", [request(id)], now=now)


async def ids_in(root: Path, **options: Any) -> list[str]:
    """The ids that wait, as a process that opens the directory now sees them."""
    async with opened(root, **options) as storage:
        return sorted(id for id, _ in (await storage.list("q", "waiting", limit=100_000)).items)


async def slots_in(root: Path, *ids: str) -> list[Slot]:
    async with opened(root) as storage:
        return await storage.get("q", ids)


def commit(root: Path, number: int) -> Path:
    return root / "commits" / f"{number:016x}"


def cut(path: Path, length: int) -> None:
    """Leave only the first bytes, as a power loss may."""
    os.truncate(path, length)


def flip(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())
