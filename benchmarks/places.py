"""A new, empty place for each measurement, on the disk where the benchmarks are run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, remove


@asynccontextmanager
async def empty_place(url: str) -> AsyncIterator[Storage]:
    """Open a storage at a new place, the PLACE of its URL, and remove the place afterwards."""
    folder = tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd())
    place = folder if url.startswith("file") else f"bench_{uuid4().hex}"
    there = url.replace("PLACE", place)
    try:
        async with open_storage(there) as storage:
            yield storage
        if place in there:
            await remove(there)
    finally:
        # Gone already where the place was the folder itself.
        shutil.rmtree(folder, ignore_errors=True)
