"""The SQL of this storage: files of named queries, read once, with the schema's name put in.

A file holds sections `-- name: NAME`; the comment lines under that are the query's contract.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from dibs.errors import ConfigurationError

_SECTION: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_FILES: Final = ("columns", "place", "verbs", "reading")

#: What each state of list() asks of `live` (l) and of `ended` (e); None stands for an export: everything.
_STATES: Final = {
    None: ("true", "true"),
    "waiting": ("l.state = 'w'", "false"),
    "scheduled": ("l.state = 'w' AND l.run_at > (SELECT now_ms FROM clock)", "false"),
    "active": ("l.state <> 'w'", "false"),
    "handed_off": ("l.state = 'h'", "false"),
    "blocked": ("(l.next).seq IS NOT NULL", "false"),
    "completed": ("false", "e.kind = 'completed'"),
    "failed": ("false", "e.kind = 'failed'"),
    "cancelled": ("false", "e.kind = 'cancelled'"),
}


class Migration(NamedTuple):
    """One numbered file of migrations/."""

    number: int
    name: str
    text: str


@cache
def sections() -> dict[str, str]:
    """Return every query by name, as it stands in its file."""
    found: dict[str, str] = {}
    for name in _FILES:
        text = (files(__package__) / "sql" / f"{name}.sql").read_text("utf-8")
        found |= _split(name, text)
    return found


def _split(file: str, text: str) -> dict[str, str]:
    _, *parts = _SECTION.split(text)
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) < len(names):
        raise AssertionError(f"{file}.sql names a query twice")
    return dict(zip(names, (_without_comments(body) for body in bodies), strict=True))


def _without_comments(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the numbered migrations, in order."""
    folder = files(__package__) / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8"))
        for name in names
    )


class Queries:
    """The queries and migrations for one schema."""

    def __init__(self, schema: str) -> None:
        schema_name = quoted(schema)
        self.plain = schema
        #: As it stands in queries that are sent with parameters, where the driver reads a percent sign.
        self.schema = schema_name.replace("%", "%%")
        self.channel = f"dibs_{sha256(schema.encode()).hexdigest()[:24]}"
        columns = sections()
        job, run, successor, outcome = (columns[name] for name in ("job", "run", "successor", "outcome"))
        self._words = {
            "schema": self.schema,
            "name": schema_name,
            "name_text": schema_name.replace("'", "''"),
            "channel": self.channel,
            "lock": str(_lock("numbers", schema)),
            "log_class": str(_lock("log", schema) >> 32 & 0x7FFFFFFF),
            "setting": f"dibs.{self.channel}",
            "migration_lock": str(_lock("migrations", schema)),
            # A plan made while a table was empty would read it whole once it is not. And what is switched off
            # counts as a cost of 1e10, for which JIT would compile each statement: 4 x slower on 15.
            "pinned": f"SET search_path = {schema_name}, pg_temp SET plan_cache_mode = force_generic_plan "
            "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off",
            "slot": f"clock.now_ms, j.state::text, {job}, {run}, {successor}, {outcome}, "
            "o.dropped, j.dropped",
            "claimed": re.sub(r"\bj\.", "c.", job),
            "kept": re.sub(r"\bo\.", "(e.kept).", outcome),
        }
        self._made: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        """Return a query by name, ready to be sent."""
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self.filled(sections()[name]).encode()
        return made

    def page(self, state: str | None, *, ends: bool = False) -> bytes:
        """Return the query for a page of the ids in a state, None for all; if it `ends`, up to `until`."""
        # In a condition that also holds without an end the index would not be read up to it, but on and on.
        name = f"page {state} up to" if ends else f"page {state}"
        live, ended = ("AND l.id <= %(until)s", "AND e.id <= %(until)s") if ends else ("", "")
        text = sections()["page"].replace("{live_end}", live).replace("{ended_end}", ended)
        return self._of_state(name, text, state)

    def split(self, state: str | None) -> bytes:
        """Return the query for where to cut the ids in a state, None for all."""
        return self._of_state(f"split {state}", sections()["split"], state)

    def _of_state(self, name: str, text: str, state: str | None) -> bytes:
        if name not in self._made:
            live, ended = _STATES[state]
            text = text.replace("{live_filter}", live).replace("{ended_filter}", ended)
            self._made[name] = self.filled(text).encode()
        return self._made[name]

    def filled(self, text: str) -> str:
        """Put names in; braces around anything else are SQL's own."""
        return _PLACEHOLDER.sub(lambda found: self._words.get(found[1], found[0]), text)


def quoted(schema: str) -> str:
    """Return a schema's name as an identifier. Raises ConfigurationError for what cannot be one."""
    try:
        size = len(schema.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= 63 or "\0" in schema:
        raise ConfigurationError("schema must have 1 to 63 bytes of UTF-8 and no NUL")
    if schema.startswith("pg_"):
        raise ConfigurationError(f"schema {schema!r}: names that begin with pg_ belong to Postgres itself")
    return '"' + schema.replace('"', '""') + '"'


def _lock(what: str, schema: str) -> int:
    """Return the key of an advisory lock for one purpose in one schema."""
    return int.from_bytes(sha256(f"dibs {what} {schema}".encode()).digest()[:8], "big", signed=True)
