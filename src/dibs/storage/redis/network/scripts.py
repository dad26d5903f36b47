"""The Lua scripts, one for each verb, each joined from its file and the files that it includes.

Redis has no modules for scripts, so a line `-- @include queue` stands for the text of lua/include/queue.lua.

A line `-- @nest accept` inserts a file inside a function that only some calls need, with all that the file
includes and that stands nowhere above. Each call of a script defines its functions, and most calls of
settle_and_claim need a third of them.

A line `-- @enclose` makes the rest of the script one function. Each call of a script defines all functions
in it. For each local of the same function that a definition uses, Lua 5.1 searches a list of such locals; for
a local of an enclosing function it does not. In settle_and_claim, these searches took a quarter of the time.

`@database` in a text stands for the number of the database: channels are the same in all databases of a
server, so their names contain it, and a script cannot ask for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

_INCLUDE: Final = re.compile(r"\s*-- @(include|nest) (\w+)\s*$")
_ENCLOSE: Final = "-- @enclose"


class Script(NamedTuple):
    """A complete script, and its SHA-1 hash, by which EVALSHA names it."""

    name: str
    text: str
    sha: str


class BadScript(Exception):
    """Raised for an include that does not exist or that includes itself."""


@cache
def script(name: str, database: int = 0) -> Script:
    """Return the script of a verb for a database, read once from src/dibs/storage/redis/lua."""
    text = assemble(name, _read_lua).replace("@database", str(database))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def assemble(name: str, read: Callable[[str], str]) -> str:
    """Return the text of a file with each include inserted at the first line that names it, and @enclose.

    `read` returns the text of a file by its name. Raise BadScript.
    """
    lines: list[str] = []
    _append_lines(lines, name, read, including=(), included=set())
    text = "\n".join("return (function()" if line == _ENCLOSE else line for line in lines)
    return text + "\n" + "end)()\n" * lines.count(_ENCLOSE)


def _append_lines(
    lines: list[str],
    name: str,
    read: Callable[[str], str],
    *,
    including: tuple[str, ...],
    included: set[str],
) -> None:
    for number, line in enumerate(read(name).splitlines(), 1):
        found = _INCLUDE.match(line)
        if found is None:
            lines.append(line)
            continue
        nested, include = found[1] == "nest", f"include/{found[2]}"
        if include in (*including, name):
            raise BadScript(f"{name}.lua:{number}: {include} includes itself")
        if include not in included:
            above = {*included} if nested else included
            above.add(include)
            inserted: list[str] = []
            try:
                _append_lines(inserted, include, read, including=(*including, name), included=above)
            except FileNotFoundError:
                raise BadScript(f"{name}.lua:{number}: there is no {include}.lua") from None
            lines += [line for line in inserted if not nested or line != _ENCLOSE]


def _read_lua(name: str) -> str:
    return files("dibs.storage.redis").joinpath(f"lua/{name}.lua").read_text("utf-8")
