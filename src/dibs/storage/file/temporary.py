"""Temporary storages inside the folder of a URL, for the conformance kit and for tests."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path


def temporary_url(url: str, name: str) -> str:
    """Return the URL of the folder `name` inside the folder of `url`."""
    folder, mark, query = url.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


async def remove_url(url: str) -> None:
    """Remove the folder of a URL with everything in it, if it is the directory of a file storage."""
    path = Path(url.partition("?")[0].partition(":")[2])
    if (path / "commits").is_dir():
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
