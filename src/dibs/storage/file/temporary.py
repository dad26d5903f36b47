"""Places of one's own, made and taken away: for the kit and for tests, never on the way of a job."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path


def place_url(url: str, name: str) -> str:
    """Return the URL of a folder of this name inside that of a URL."""
    place, mark, query = url.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{query}"


async def remove_url(url: str) -> None:
    """Remove the folder of a URL with everything in it; one that holds no jobs is left alone."""
    path = Path(url.partition("?")[0].partition(":")[2])
    if (path / "commits").is_dir():
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
