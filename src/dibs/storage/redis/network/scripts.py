"""The Lua files as scripts: one for each verb, put together from its includes, known to Redis by its hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

_INCLUDE: Final = re.compile(r"-- @include (\w+)\s*$")


class Script(NamedTuple):
    """A verb as Redis runs it."""

    name: str
    text: str
    sha: str


class BadScript(Exception):
    """An include that is not there, or that includes itself."""


@cache
def script(name: str) -> Script:
    """Return the script of a verb."""
    text = assemble(name, _read)
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def assemble(name: str, read: Callable[[str], str]) -> str:
    """Return a file with its includes in place, each of them once. Raises BadScript with file and line."""
    lines: list[str] = []
    _add(lines, name, read, open_=(), done=set())
    return "\n".join(lines) + "\n"


def _add(
    lines: list[str], name: str, read: Callable[[str], str], *, open_: tuple[str, ...], done: set[str]
) -> None:
    for number, line in enumerate(read(name).splitlines(), 1):
        found = _INCLUDE.match(line)
        if found is None:
            lines.append(line)
            continue
        wanted = f"include/{found[1]}"
        if wanted in (*open_, name):
            raise BadScript(f"{name}.lua:{number}: {wanted} includes itself")
        if wanted not in done:
            done.add(wanted)
            try:
                _add(lines, wanted, read, open_=(*open_, name), done=done)
            except FileNotFoundError:
                raise BadScript(f"{name}.lua:{number}: there is no {wanted}.lua") from None


def _read(name: str) -> str:
    return files("dibs.storage.redis").joinpath(f"lua/{name}.lua").read_text("utf-8")
