"""The URL of a storage, as in `lmdb:///var/jobs` or `lmdb:./jobs`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from dibs.errors import ConfigurationError
from dibs.storage.protocol import Clock
from dibs.storage.registry import check_poll, read_flag, read_options
from dibs_lmdb.storage import LmdbStorage

OPTIONS: Final[dict[str, Callable[[str], Any]]] = {"fsync": read_flag, "poll": float, "map_size": int}


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> LmdbStorage:
    plain, known = read_options(url, OPTIONS, options)
    check_poll(known.get("poll", 1))
    return LmdbStorage(_folder(plain), plain, clock, **known)


def temporary_url(url: str, name: str) -> str:
    """Return the URL of an empty storage next to that of `url`."""
    plain, query = _divide(url)
    folder = _folder(plain)
    return f"lmdb:{quote(str(folder.with_name(f'{folder.name}-{name}')))}{query}"


def data_folder(url: str) -> Path:
    return _folder(_divide(url)[0])


async def remove_url(url: str) -> None:
    shutil.rmtree(_folder(_divide(url)[0]), ignore_errors=True)


def _divide(url: str) -> tuple[str, str]:
    plain, mark, query = url.partition("?")
    return plain, mark + query


def _folder(url: str) -> Path:
    path = unquote(url.partition(":")[2])
    if path.startswith("//"):
        path = path[2:]
        if not path.startswith("/"):
            raise ConfigurationError(
                f"{url} has a host, but LMDB has no server; write lmdb:///absolute/path or lmdb:./path"
            )
    if not path:
        raise ConfigurationError(f"{url} has no path; write lmdb:///absolute/path or lmdb:./path")
    return Path(path).expanduser()
