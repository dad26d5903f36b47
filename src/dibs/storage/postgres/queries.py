"""The SQL queries, migrations and functions, read from their files and filled in with the name of the schema.

A file in sql/ holds sections that begin with `-- name: NAME`. The comment below that line says what the query
returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from dibs.errors import ConfigurationError

_SECTION: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_FILES: Final = ("columns", "place", "verbs", "reading")

#: For each state that the verb `list` takes, the SQL conditions that select its ids in the tables `live` (l)
#: and `ended` (e). None selects every id, for an export.
_STATES: Final = {
    None: ("true", "true"),
    "waiting": ("l.fence IS NULL", "false"),
    "scheduled": ("l.fence IS NULL AND l.run_at > (SELECT now_ms FROM clock)", "false"),
    "active": ("l.fence IS NOT NULL", "false"),
    "handed_off": ("l.state = 'h'", "false"),
    "blocked": ("(l.next).seq IS NOT NULL", "false"),
    "completed": ("false", "e.kind = 'completed'"),
    "failed": ("false", "e.kind = 'failed'"),
    "cancelled": ("false", "e.kind = 'cancelled'"),
}


#: The parameter `now` of a verb, which also sets lock_timeout for the transaction of its statement.
_LIMITED_NOW: Final = (
    "CASE WHEN set_config('lock_timeout', %(lock_ms)s::text, true) <> '' THEN %(now)s::bigint END"
)


class Migration(NamedTuple):
    """A numbered file in migrations/, as in 1, "0001_tables" and its SQL."""

    number: int
    name: str
    text: str


@cache
def read_queries() -> dict[str, str]:
    """Return the text of every query in sql/ by its name.

    The text still has placeholders such as {schema}.
    """
    found: dict[str, str] = {}
    for name in _FILES:
        text = (files(__package__) / "sql" / f"{name}.sql").read_text("utf-8")
        found |= _split_sections(name, text)
    return found


def _split_sections(file: str, text: str) -> dict[str, str]:
    _, *parts = _SECTION.split(text)
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) < len(names):
        raise AssertionError(f"bug in dibs: {file}.sql has two queries with the same name")
    return dict(zip(names, (_without_comments(body) for body in bodies), strict=True))


def _without_comments(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()


@cache
def migrations() -> tuple[Migration, ...]:
    """Read the files in migrations/, and return them in the order of their numbers."""
    folder = files(__package__) / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8"))
        for name in names
    )


@cache
def function_files() -> dict[str, str]:
    """Return the text of each file in functions/ by its name, such as "claim"."""
    folder = files(__package__) / "functions"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return {name.removesuffix(".sql"): (folder / name).read_text("utf-8") for name in names}


def functions_hash(texts: Mapping[str, str]) -> str:
    """Return a hash of the files in functions/. A schema remembers that of the functions that it has.

    It is one of the texts with their placeholders filled in, for any one schema: the columns and the settings
    that they stand for belong to the functions.
    """
    filled = map(Queries("dibs").fill_in, texts.values())
    return sha256("\n".join(filled).encode()).hexdigest()


class Queries:
    """The texts of all queries, migrations and functions, with the name of one schema filled in."""

    def __init__(self, schema: str) -> None:
        schema_name = quote_identifier(schema)
        self.plain = schema
        #: The quoted name for queries with parameters, in which psycopg reads %% as a percent sign.
        self.schema = schema_name.replace("%", "%%")
        self.channel = f"dibs_{sha256(schema.encode()).hexdigest()[:24]}"
        columns = read_queries()
        job, run, successor, outcome = (columns[name] for name in ("job", "run", "successor", "outcome"))
        self._values = {
            "schema": self.schema,
            "name": schema_name,
            "name_text": schema_name.replace("'", "''"),
            "channel": self.channel,
            "lock": str(_advisory_lock_key("numbers", schema)),
            "log_class": str(_advisory_lock_key("log", schema) >> 32 & 0x7FFFFFFF),
            "setting": f"dibs.{self.channel}",
            # Disable sequential scans: Postgres keeps a plan that it made while a table was empty, and that
            # plan would later scan the whole table. Disable bitmap scans and sorts: if ANALYZE has seen only
            # active jobs, Postgres would sort all waiting jobs for a claim of one, in 261 ms with 1,000,000
            # of them. Disable JIT, too: Postgres adds 1e10 to the cost of a disabled node, and for such a
            # cost JIT would compile each statement, which is 4 times slower on Postgres 15. Each setting
            # takes 0.2 us of a call.
            "pinned": f"SET search_path = {schema_name}, pg_temp SET plan_cache_mode = force_generic_plan "
            "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off "
            "SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off",
            "slot": f"clock.now_ms, j.state::text, {job}, {run}, {successor}, {outcome}, "
            "o.dropped, j.dropped",
            "claimed": columns["claimed"],
            "started": columns["started"],
            "arrays": columns["arrays"],
            "replaced": columns["replaced"],
            "kept": re.sub(r"\bo\.", "(e.kept).", outcome),
            "settings": columns["settings"],
        }
        self._filled: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        """Return the query of this name, ready to send. Each query is filled in only once."""
        query = self._filled.get(name)
        if query is None:
            query = self._filled[name] = self.fill_in(read_queries()[name]).encode()
        return query

    def lock_limited(self, name: str) -> bytes:
        """Return the query of this name with the parameter `lock_ms`, the longest wait for one lock.

        Postgres evaluates the arguments of a function before it runs the function. So the verb runs under the
        limit, which ends with the transaction of the statement, also behind a pooler.
        """
        limited = f"lock-limited {name}"
        if limited not in self._filled:
            text = read_queries()[name].replace("%(now)s::bigint", _LIMITED_NOW)
            self._filled[limited] = self.fill_in(text).encode()
        return self._filled[limited]

    def prepared_enqueue(self) -> bytes:
        """Return the statement that prepares `enqueue_one`, with a limit for locks."""
        now = _LIMITED_NOW.replace("%(now)s", "NULL")
        text = read_queries()["enqueue_one"].replace("%(now)s::bigint", now)
        for number, name in enumerate(("queue)s", "lock_ms)s", "id)s", "payload)b"), 1):
            text = text.replace(f"%({name}", f"${number}")
        # A statement without parameters is sent as it is, so a percent sign in it is not doubled.
        text = self.fill_in(text).replace(self.schema, self._values["name"])
        return f"PREPARE dibs_enqueue_one (text, text, text, bytea) AS {text}".encode()

    def joined(self, name: str) -> bytes:
        """Return the query of this name for the caller's transaction, with the parameter `identity`.

        It returns no row, and calls no verb, in another schema than that of `identity`.
        """
        joined = f"joined {name}"
        if joined not in self._filled:
            text = read_queries()[name].replace("%(queue)s::text", "own.queue")
            text = text.replace(
                "FROM {schema}.",
                "FROM {schema}.joined(%(identity)s::text, %(queue)s::text) own (queue),\nLATERAL {schema}.",
            )
            # The CTE is never run. To parse it, Postgres locks a table, and then learns that the schema was
            # created since it looked for it. The caller's transaction may be older than the schema, and a
            # role named dibs has the schema dibs on its search path.
            text = f"WITH unused AS (SELECT FROM pg_catalog.pg_language)\n{text}"
            self._filled[joined] = self.fill_in(text).encode()
        return self._filled[joined]

    def page(self, state: str | None, *, ends: bool = False) -> bytes:
        """Return the query for a page of the ids in a state (None: every id).

        With `ends`, the query takes the parameter `until`, the last id of the listing.
        """
        # Why not one query with the condition `until IS NULL OR id <= until`: with it, Postgres reads the
        # index beyond `until`.
        name = f"page {state} up to" if ends else f"page {state}"
        live, ended = ("AND l.id <= %(until)s", "AND e.id <= %(until)s") if ends else ("", "")
        text = read_queries()["page"].replace("{live_end}", live).replace("{ended_end}", ended)
        return self._query_for_state(name, text, state)

    def split(self, state: str | None) -> bytes:
        """Return the query for the cursors that split the ids in a state (None: every id) into parts."""
        return self._query_for_state(f"split {state}", read_queries()["split"], state)

    def _query_for_state(self, name: str, text: str, state: str | None) -> bytes:
        if name not in self._filled:
            live, ended = _STATES[state]
            text = text.replace("{live_filter}", live).replace("{ended_filter}", ended)
            self._filled[name] = self.fill_in(text).encode()
        return self._filled[name]

    def fill_in(self, text: str) -> str:
        """Return SQL text with the known placeholders, such as {schema}, filled in. Keep other braces."""
        return _PLACEHOLDER.sub(lambda found: self._values.get(found[1], found[0]), text)


def quote_identifier(schema: str) -> str:
    """Return the name of a schema as a quoted SQL identifier.

    Raise ConfigurationError for an invalid name.
    """
    try:
        size = len(schema.encode())
    except UnicodeEncodeError:
        size = 0
    # The name stands in comments of the migrations, and in texts between $$. Where the setting
    # standard_conforming_strings is off, a backslash before a quote would end a text early.
    if not 0 < size <= 63 or not schema.isprintable() or "$$" in schema or "\\" in schema:
        raise ConfigurationError(
            f"schema is {schema!r:.80}; it must be 1 to 63 bytes of UTF-8, without control characters, "
            "backslashes and $$"
        )
    if schema.startswith("pg_"):
        raise ConfigurationError(
            f"schema {schema!r}: Postgres reserves names that begin with pg_; choose another"
        )
    return '"' + schema.replace('"', '""') + '"'


def _advisory_lock_key(purpose: str, schema: str) -> int:
    """Return the key of an advisory lock: a hash, so that each purpose and each schema has another lock."""
    return int.from_bytes(sha256(f"dibs {purpose} {schema}".encode()).digest()[:8], "big", signed=True)
