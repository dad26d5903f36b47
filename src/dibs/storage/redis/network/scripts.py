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

_LUA: Final = files("dibs.storage.redis") / "lua"
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


class BadScript(Exception):
    """Raised for an include that does not exist or includes itself, and for a name that two files share."""


@cache
def script(verb: str, database: int = 0) -> Script:
    """Return the script of a verb for a database, read once from src/dibs/storage/redis/lua."""
    text = f"{assemble([verb], _read_lua)}\nreturn verbs.{verb}()\n"
    text = text.replace("@database", str(database)).replace("@engine", "script")
    return Script(verb, text, _hash(text))


@cache
def library_name(database: int = 0) -> str:
    """Return the name of the library; that of a function is this name, `_` and the verb.

    The name contains a hash of all that the text is made of, so each version has its own name. It needs no
    text: joining the files takes ten times as long, and only a process whose server has no library does it.
    """
    parts = [str(database), _hash((files(__package__) / "scripts.py").read_text("utf-8"))]
    for name in _file_names():
        parts += [name, _read_lua(name)]
    return f"dibs_{_hash(chr(0).join(parts))[:16]}"


@cache
def library_text(database: int = 0) -> str:
    """Return the text of the library for a database, for FUNCTION LOAD."""
    names, name = verb_names(), library_name(database)
    text = _LIBRARY.format(
        definitions=assemble(names, _read_lua, ("begin_call",)),
        registrations="\n".join(f"register('{verb}')" for verb in names),
    )
    text = text.replace("@database", str(database)).replace("@engine", "library").replace("@library", name)
    return f"#!lua name={name}\n{text}"


def verb_names() -> list[str]:
    """Return the names of all verbs: the names of the files in src/dibs/storage/redis/lua."""
    return [name for name in _file_names() if not name.startswith("include/")]


def assemble(verbs: Iterable[str], read: Callable[[str], str], used: Iterable[str] = ()) -> str:
    """Return Lua that defines the table `verbs`, with a function for each verb.

    `read` returns the text of a file by its name. Each include is defined once, before the verbs. The names
    in `used` are declared for the caller, as those that several files use. Raise BadScript.
    """
    parsed: dict[str, _File] = {}
    for verb in verbs:
        _add_file(parsed, verb, read, ())
    words = Counter(chain(used, *(file.words for file in parsed.values())))
    texts = _without_constants({name: file.text for name, file in parsed.items()}, words)
    shared: dict[str, str] = {}
    blocks = [_block(name, text, words, shared) for name, text in texts.items()]
    declared = f"local {', '.join(shared)}" if shared else ""
    return "\n".join([declared, "local verbs = {}", *blocks])


class _File(NamedTuple):
    """A file without its comments: its includes with their line numbers, and the words in its text."""

    includes: list[tuple[int, str]]
    text: str
    words: set[str]


def _add_file(
    parsed: dict[str, _File], name: str, read: Callable[[str], str], including: tuple[str, ...]
) -> None:
    """Add a file after the files that it includes."""
    if name in parsed:
        return
    file = _parse(read(name))
    for number, include in file.includes:
        if include in (*including, name):
            raise BadScript(f"{name}.lua:{number}: {include} includes itself")
        try:
            _add_file(parsed, include, read, (*including, name))
        except FileNotFoundError:
            raise BadScript(f"{name}.lua:{number}: there is no {include}.lua") from None
    parsed[name] = file


@cache
def _parse(source: str) -> _File:
    includes: list[tuple[int, str]] = []
    lines: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        if found := _INCLUDE.match(line):
            includes.append((number, f"include/{found[1]}"))
        elif line and not line.lstrip().startswith("--"):
            lines.append(line)
    text = "\n".join(lines)
    return _File(includes, text, set(_WORD.findall(text)))


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


@cache
def _file_names() -> list[str]:
    """Return the names of all Lua files, as `_read_lua` takes them."""
    names = [entry.name for entry in _LUA.iterdir()]
    names += [f"include/{entry.name}" for entry in (_LUA / "include").iterdir()]
    return sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua"))


def _read_lua(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text("utf-8")
