"""A directory as a picture: what a file: place looks like from outside, whatever its storage makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

#: What lies at the top of a file storage's directory, for people. A test holds it against a real one.
MEANINGS = {
    "format": "which version of the format this is, and who made it",
    "lock": "held by whoever writes, for the length of one commit",
    "commits": "one file for each commit since the checkpoint, in order; each holds a whole batch",
    "checkpoint": "everything up to some commit; the commits before it are gone",
    "tmp": "files on their way to their name; what stays here was never committed",
}

#: A folder with more files than this is summed up, not listed.
LISTED = 6


class Entry(NamedTuple):
    """One file below the folder."""

    path: str
    size: int


def folder_of(url: str) -> Path | None:
    """Return the folder of a file: URL; None for any other."""
    if not url.startswith("file:"):
        return None
    return Path(unquote(urlsplit(url).path))


def entries_of(folder: Path) -> list[Entry]:
    """Return every file below a folder, in order. What vanishes meanwhile is left out."""
    found = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            try:
                found.append(Entry(path.relative_to(folder).as_posix(), path.lstat().st_size))
            except FileNotFoundError:
                continue
    return found


def lines_of(entries: Iterable[Entry]) -> list[str]:
    """Draw the files by folder, each thing at the top with what it is, a crowded folder cut short."""
    tops: dict[str, list[Entry]] = {}
    for entry in entries:
        tops.setdefault(entry.path.partition("/")[0], []).append(entry)
    return [line for top, inside in sorted(tops.items()) for line in _drawn(top, inside)]


def _drawn(top: str, inside: list[Entry]) -> Iterator[str]:
    size = sum(entry.size for entry in inside)
    meaning = MEANINGS.get(top, "")
    if inside[0].path == top:
        yield f"  {top:<22} {size:>14,}  {meaning}".rstrip()
        return
    yield f"  {top + '/':<22} {size:>14,}  {meaning}".rstrip()
    yield from (f"    {entry.path.partition('/')[2]:<20} {entry.size:>14,}" for entry in inside[:LISTED])
    if len(inside) > LISTED:
        yield f"    ... and {len(inside) - LISTED:,} more"
