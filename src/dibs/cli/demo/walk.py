"""Which files there are to work on, told before any of them is opened."""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from dibs.errors import Refused
from dibs.model.check_values import check_text
from dibs.model.limits import LIMITS

#: Where the demo keeps its queue. It never walks into one.
HOME = ".dibs-demo"

#: What of the standard library is not the standard library.
NOT_STDLIB = frozenset({"site-packages", "dist-packages", "__pycache__"})


class Found(Struct, frozen=True, gc=False):
    """One file, as it was when it was found."""

    path: str
    size: int
    mtime_ns: int


class Walk(Struct, kw_only=True):
    """A directory tree: its files, and what was passed over."""

    root: str
    files: list[Found]
    #: Paths and why.
    skipped: list[tuple[str, str]]


def standard_library() -> Path:
    """Return where the running interpreter keeps its standard library."""
    return Path(sysconfig.get_path("stdlib"))


def walk(path: Path | None, avoid: Path | None = None) -> Walk:
    """Find every regular file below a path; without one, in the standard library. `avoid` is passed over."""
    root = _absolute(path or standard_library())
    avoid = None if avoid is None else _absolute(avoid)
    passed_over = frozenset({HOME}) | (NOT_STDLIB if path is None else frozenset())
    found = Walk(root=str(root), files=[], skipped=[])
    for name in _names(root, passed_over, avoid, found.skipped):
        if reason := _look(name, found.files):
            found.skipped.append((name, reason))
    found.files.sort(key=lambda file: file.path)
    return found


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they were typed


def _names(
    root: Path, passed_over: frozenset[str], avoid: Path | None, skipped: list[tuple[str, str]]
) -> Iterator[str]:
    if root.is_file():
        yield str(root)
        return

    def refused(error: OSError) -> None:
        skipped.append((str(error.filename), str(error.strerror)))

    for folder, below, names in os.walk(root, onerror=refused):
        below[:] = [name for name in below if name not in passed_over and Path(folder, name) != avoid]
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118 - a Path for each is slow


def _look(name: str, files: list[Found]) -> str:
    """Add a regular file, or say why not; a link, a socket or a device is passed over in silence."""
    try:
        about = os.lstat(name)
        if stat.S_ISREG(about.st_mode):
            check_text("its path", name, LIMITS.id)
            files.append(Found(name, about.st_size, about.st_mtime_ns))
    except OSError as error:
        return error.strerror or str(error)
    except Refused as error:
        return str(error)
    return ""
