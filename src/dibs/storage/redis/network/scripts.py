"""The Lua files, joined to one library of functions, and to a script for each verb.

Redis has no modules for Lua. A line `-- @include queue` says that a file needs lua/include/queue.lua. The
files that a verb needs are joined in the order of their includes. Each file is a block of its own. A function
of Lua has at most 200 locals, so only the names that other files use are declared before the blocks, and a
number or a text with such a name stands in the place of each use.

Redis 7 and Valkey keep a library: `FUNCTION LOAD` defines its functions once, and `FCALL` calls one. Redis
6.2 has only scripts: each call of `EVALSHA` defines the functions of all its files again, which takes 40 µs.

`@database` in a text stands for the number of the database: channels are the same in all databases of a
server, so their names contain it, and a script cannot ask for it. `@engine` stands for `library` or `script`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Final, NamedTuple

_INCLUDE: Final = re.compile(r"-- @include (\w+)")
_WORD: Final = re.compile(r"(?<![.:'\w])[A-Za-z_]\w*")
#: The definition of a function, or of one or more values, on the outermost level of a file.
_DEFINITION: Final = re.compile(r"^local (?:function (\w+)|(\w+(?:, \w+)*)(?: =|$))", re.MULTILINE)
#: The definition of numbers and texts with names in capitals.
_LITERAL: Final = re.compile(r"\d+|'[^']*'")
_CONSTANTS: Final = re.compile(
    rf"^local ([A-Z_]+(?:, [A-Z_]+)*) = ((?:{_LITERAL.pattern})(?:, (?:{_LITERAL.pattern}))*)$", re.MULTILINE
)

#: A library. KEYS and ARGV are globals of a script, and arguments of a function. The files are joined in a
#: function that the first call runs, because redis.call does not exist while the library is loaded.
_LIBRARY: Final = """\
local KEYS, ARGV, verbs, begin
local function define()
{definitions}
return verbs, begin_call
end
local function register(name)
redis.register_function('@library_' .. name, function(keys, arguments)
KEYS, ARGV = keys, arguments
if not verbs then verbs, begin = define() end
begin()
return verbs[name]()
end)
end
{registrations}
"""


class Script(NamedTuple):
    """The script of one verb, and its SHA-1 hash, by which EVALSHA names it."""

    name: str
    text: str
    sha: str


class Library(NamedTuple):
    """The functions of all verbs. The name contains a hash of the text, so each version has its own name."""

    #: The name of a function is that of the library, `_` and the verb.
    name: str
    text: str


class BadScript(Exception):
    """Raised for an include that does not exist or includes itself, and for a name that two files share."""


@cache
def script(verb: str, database: int = 0) -> Script:
    """Return the script of a verb for a database, read once from src/dibs/storage/redis/lua."""
    text = f"{assemble([verb], _read_lua)}\nreturn verbs.{verb}()\n"
    text = text.replace("@database", str(database)).replace("@engine", "script")
    return Script(verb, text, _hash(text))


@cache
def library(database: int = 0) -> Library:
    """Return the library for a database, read once from src/dibs/storage/redis/lua."""
    names = verb_names()
    text = _LIBRARY.format(
        definitions=assemble(names, _read_lua, ("begin_call",)),
        registrations="\n".join(f"register('{name}')" for name in names),
    )
    text = text.replace("@database", str(database)).replace("@engine", "library")
    name = f"dibs_{_hash(text)[:16]}"
    return Library(name, f"#!lua name={name}\n{text.replace('@library', name)}")


@cache
def verb_names() -> list[str]:
    """Return the names of all verbs: the names of the files in src/dibs/storage/redis/lua."""
    names = (path.name for path in files("dibs.storage.redis").joinpath("lua").iterdir())
    return sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua"))


def assemble(verbs: Iterable[str], read: Callable[[str], str], used: Iterable[str] = ()) -> str:
    """Return Lua that defines the table `verbs`, with a function for each verb.

    `read` returns the text of a file by its name. Each include is defined once, before the verbs. The names
    in `used` are declared for the caller, as those that several files use. Raise BadScript.
    """
    texts: dict[str, str] = {}
    for verb in verbs:
        _add_file(texts, verb, read, ())
    words = Counter(chain(used, *(set(_WORD.findall(text)) for text in texts.values())))
    texts = _without_constants(texts, words)
    shared: dict[str, str] = {}
    blocks = [_block(name, text, words, shared) for name, text in texts.items()]
    declared = f"local {', '.join(shared)}" if shared else ""
    return "\n".join([declared, "local verbs = {}", *blocks])


def _add_file(
    texts: dict[str, str], name: str, read: Callable[[str], str], including: tuple[str, ...]
) -> None:
    """Add a file after the files that it includes, without its comments."""
    if name in texts:
        return
    lines: list[str] = []
    for number, line in enumerate(read(name).splitlines(), 1):
        if found := _INCLUDE.match(line):
            include = f"include/{found[1]}"
            if include in (*including, name):
                raise BadScript(f"{name}.lua:{number}: {include} includes itself")
            try:
                _add_file(texts, include, read, (*including, name))
            except FileNotFoundError:
                raise BadScript(f"{name}.lua:{number}: there is no {include}.lua") from None
        elif line and not line.lstrip().startswith("--"):
            lines.append(line)
    texts[name] = "\n".join(lines)


def _without_constants(texts: Mapping[str, str], words: Counter[str]) -> dict[str, str]:
    """Return the texts with the values of shared constants in the places of their names."""
    values: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        names = found[1].split(", ")
        if all(words[name] == 1 for name in names):
            return found[0]
        values.update(zip(names, _LITERAL.findall(found[2]), strict=True))
        return ""

    texts = {
        name: _CONSTANTS.sub(take, text) if name.startswith("include/") else text
        for name, text in texts.items()
    }
    if not values:
        return texts
    uses = re.compile(rf"(?<![.:'\w])(?:{'|'.join(values)})\b")
    return {name: uses.sub(lambda found: values[found[0]], text) for name, text in texts.items()}


def _block(name: str, text: str, words: Counter[str], shared: dict[str, str]) -> str:
    """Return a file as a block, or that of a verb as a function. Add what other files use to `shared`."""
    if not name.startswith("include/"):
        return f"verbs.{name} = function()\n{text}\nend"

    def define(found: re.Match[str]) -> str:
        names = [found[1]] if found[1] else found[2].split(", ")
        if all(words[one] == 1 for one in names):
            return found[0]
        for one in names:
            if shared.setdefault(one, name) != name:
                raise BadScript(f"{name}.lua and {shared[one]}.lua both define {one}")
        return found[0].removeprefix("local ") if found[1] or found[0].endswith("=") else ""

    return f"do\n{_DEFINITION.sub(define, text)}\nend"


def _hash(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _read_lua(name: str) -> str:
    return files("dibs.storage.redis").joinpath(f"lua/{name}.lua").read_text("utf-8")
