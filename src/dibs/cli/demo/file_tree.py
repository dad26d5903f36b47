"""Finding the files of the demo, without opening them."""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field
from msgspec import Struct

from dibs.errors import Refused
from dibs.model.check_values import check_text
from dibs.model.error_text import summarize_exception
from dibs.model.limits import LIMITS

#: Directory of the demo's queue, in the working directory. `find_files` skips every directory of this name.
QUEUE_DIRECTORY = ".dibs-demo"

#: Folders inside the standard library's folder that do not belong to it.
EXCLUDED_FROM_STDLIB = frozenset({"site-packages", "dist-packages", "__pycache__"})


class FoundFile(Struct, frozen=True, gc=False):
    """One file, with its size in bytes and time of change when it was found."""

    path: str
    size: int
    mtime_ns: int


@define
class FileTree:
    """The regular files below `root`, and the paths that cannot become jobs."""

    root: str
    files: list[FoundFile] = field(factory=list)
    #: Paths that cannot become jobs, each with the reason.
    skipped: list[tuple[str, str]] = field(factory=list)


def standard_library() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(path: Path | None, exclude: Path | None = None) -> FileTree:
    """Find all regular files below a path, or in the standard library. Skip everything below `exclude`."""
    root = _absolute_path(path or standard_library())
    exclude = None if exclude is None else _absolute_path(exclude)
    skipped_names = frozenset({QUEUE_DIRECTORY}) | (EXCLUDED_FROM_STDLIB if path is None else frozenset())
    found = FileTree(str(root))
    for name in _walk_files(root, skipped_names, exclude, found.skipped):
        if reason := _add_file(name, found.files):
            found.skipped.append((name, reason))
    found.files.sort(key=lambda file: file.path)
    return found


def _absolute_path(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - unlike resolve(), keeps symbolic links


def _walk_files(
    root: Path, skipped_names: frozenset[str], exclude: Path | None, skipped: list[tuple[str, str]]
) -> Iterator[str]:
    if root.is_file():
        yield str(root)
        return

    def on_error(error: OSError) -> None:
        skipped.append((str(error.filename), str(error.strerror)))

    for folder, below, names in os.walk(root, onerror=on_error):
        below[:] = [name for name in below if name not in skipped_names and Path(folder, name) != exclude]
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118 - a Path for each is slow


def _add_file(name: str, files: list[FoundFile]) -> str:
    """Add a regular file, or return why it cannot become a job. Ignore links, sockets and devices."""
    try:
        about = os.lstat(name)
        if stat.S_ISREG(about.st_mode):
            check_text("its path", name, LIMITS.id)
            files.append(FoundFile(name, about.st_size, about.st_mtime_ns))
    except OSError as error:
        return error.strerror or summarize_exception(error)
    except Refused as error:
        return str(error)
    return ""
