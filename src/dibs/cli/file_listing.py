"""The list of files that `dibs show` prints for a file: URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import frozen

from dibs.storage.addresses import parse_file_path

#: File or folder in the directory of a file storage -> explanation. A test compares the names with a real
#: directory.
ENTRY_MEANINGS = {
    "format": "version of the format, and of its dibs",
    "lock": "locked by the writer during a commit",
    "commits": "a file for each commit since the checkpoint",
    "checkpoint": "all jobs up to a commit; older ones are gone",
    "reserve": "space that is kept for a full disk",
    "tmp": "files being written; never committed if left",
}

#: Most files that are listed for one folder.
MAX_LISTED = 6


@frozen
class ListedFile:
    """One file below the directory of a file storage."""

    #: Path relative to that directory, with "/" on every system.
    path: str
    #: Size in bytes.
    size: int


def file_url_directory(url: str) -> Path | None:
    """Return the directory of a file: URL, or None for other URLs. Raises UnknownOption for a wrong path."""
    if not url.startswith("file:"):
        return None
    return Path(parse_file_path(url))


def list_files(directory: Path) -> list[ListedFile]:
    """Return every file below a directory, sorted, except files that a worker removes at the same time."""
    found = []
    for root, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            try:
                found.append(ListedFile(path.relative_to(directory).as_posix(), path.lstat().st_size))
            except FileNotFoundError:
                continue
    return found


def format_files(entries: Iterable[ListedFile]) -> list[str]:
    """Return one line for each entry of the directory, with its size and meaning, and its first files."""
    tops: dict[str, list[ListedFile]] = {}
    for entry in entries:
        tops.setdefault(entry.path.partition("/")[0], []).append(entry)
    return [line for top, inside in sorted(tops.items()) for line in _format_entry(top, inside)]


def _format_entry(top: str, inside: list[ListedFile]) -> Iterator[str]:
    size = sum(entry.size for entry in inside)
    meaning = ENTRY_MEANINGS.get(top, "")
    if inside[0].path == top:
        yield f"  {top:<18} {size:>13,}  {meaning}".rstrip()
        return
    yield f"  {top + '/':<18} {size:>13,}  {meaning}".rstrip()
    yield from (f"    {entry.path.partition('/')[2]:<16} {entry.size:>13,}" for entry in inside[:MAX_LISTED])
    if len(inside) > MAX_LISTED:
        yield f"    ... and {len(inside) - MAX_LISTED:,} more"
