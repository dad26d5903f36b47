"""Creation and removal of temporary storages, for the conformance kit and for tests.

Each is a subfolder of the folder in the URL that the user gives.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from dibs.storage.addresses import parse_file_path


def temporary_url(url: str, name: str) -> str:
    """Return the URL of the subfolder `name`: `file:./jobs?fsync=1` and `a` give `file:./jobs/a?fsync=1`."""
    folder, mark, query = url.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def data_folder(url: str) -> Path:
    """Return the folder of a URL, which holds all files of the storage."""
    return Path(parse_file_path(url.partition("?")[0]))


async def remove_url(url: str) -> None:
    """Delete the folder of a URL with all its files. Keep it if it is not the directory of a file storage."""
    path = Path(parse_file_path(url))
    if (path / "commits").is_dir():
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
