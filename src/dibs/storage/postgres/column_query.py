"""SQL that reads whole tables of jobs or outcomes for a driver that makes columns of the rows.

Each statement sees one snapshot, so an id appears exactly once. The numbers of a row are packed into one
column of bytes, as ColumnQuery says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dibs.model.results import State
from dibs.storage.abilities import NULL_NUMBER, NUMBERS_COLUMN, ColumnTable
from dibs.storage.postgres.codec.parameters import sendable_id

_SAME: Final = ("id", "enqueues", "first", "revision")
_COUNTS: Final = ("attempts", "retries", "stalls", "timeouts")
_FLAGS: Final = ("handed_off", "cancel_requested")
_TIMES: Final = ("run_at", "enqueued_at", "claimed_at", "ended_at", "expires_at")
#: Columns that are packed as numbers of 64 bits.
_NUMBERS: Final = frozenset(
    (*_SAME[1:], *_COUNTS, *_FLAGS, *_TIMES, "seq", "priority", "fence", "memo_bytes")
)

#: Column -> its SQL for a row of `live`, which is a current job. `l.fence` is NULL while the job waits.
_JOB: Final = {
    **{name: f"l.{name}" for name in (*_SAME, *_COUNTS, "payload", "run_at", "enqueued_at", "seq", "key")},
    **{name: f"l.{name}" for name in ("fence", "holder", "claimed_at")},
    **{name: f"l.{name}::text" for name in ("error", "origin", "progress")},
    "attributes": "coalesce(l.attributes::text, '{}')",
    "state": "CASE WHEN l.fence IS NULL THEN 'waiting' ELSE 'active' END",
    "priority": "l.priority",
    "memo_bytes": "octet_length(l.memo)",
    "handed_off": "CASE WHEN l.fence IS NOT NULL THEN l.state = 'h' END",
    "cancel_requested": "CASE WHEN l.fence IS NOT NULL THEN coalesce(l.cancel_requested, false) END",
}
#: The same for the successor in a row of `live`.
_SUCCESSOR: Final = {
    "id": "l.id",
    "state": "'blocked'",
    **{name: f"(l.next).{name}" for name in (*_SAME[1:], "payload", "run_at", "enqueued_at", "seq", "key")},
    **dict.fromkeys(_COUNTS, "0"),
    "attributes": "coalesce((l.next).attributes::text, '{}')",
    "priority": "(l.next).priority",
    **dict.fromkeys(("fence", "claimed_at", "memo_bytes", *_FLAGS), "NULL"),
    **dict.fromkeys(("holder", "error", "origin", "progress"), "NULL::text"),
}
#: The same for a row of `ended`, which is an outcome.
_OUTCOME: Final = {
    **{name: f"e.{name}" for name in (*_SAME, *_COUNTS, "kind", "fence", "result", "payload")},
    **{name: f"e.{name}" for name in ("claimed_at", "ended_at", "expires_at")},
    **{name: f"e.{name}::text" for name in ("error", "origin")},
    # The attributes of an outcome without data are those that it keeps, or NULL.
    "attributes": "coalesce(e.attributes::text, CASE WHEN e.payload IS NOT NULL THEN '{}' END)",
    **{name: f"nullif(e.{name}, 0)" for name in ("enqueued_at", "run_at")},
    "holder": "nullif(e.holder, '')",
    **{
        name: f"CASE WHEN e.payload IS NOT NULL THEN {value} END"
        for name, value in (
            ("priority", "e.priority"),
            ("key", "e.key"),
            ("memo_bytes", "octet_length(e.memo)"),
        )
    },
}
#: Columns of `live` and `ended` that can be null, of those in _NUMBERS.
_NULLABLE: Final = {
    "jobs": frozenset(("fence", "claimed_at", "memo_bytes", *_FLAGS)),
    "outcomes": frozenset(("enqueued_at", "run_at", "claimed_at", "expires_at", "priority", "memo_bytes")),
}
_LIVE_FILTERS: Final = {"waiting": "l.fence IS NULL", "active": "l.fence IS NOT NULL"}


def column_query(
    schema: str,
    table: ColumnTable,
    queue: str,
    columns: Sequence[str],
    *,
    state: State | None,
    after: str | None,
    until: str | None,
) -> str:
    """Return the SELECT of some columns of a table, from a schema whose name is quoted already."""
    name = quote_text(sendable_id(queue))
    number = f"(SELECT k.q FROM {schema}.queues k WHERE k.name = {name})"  # noqa: S608 - quoted above
    if table == "jobs":
        rows = f"{schema}.live l WHERE l.q = {number}{_range('l.id', after, until)}"
        return " UNION ALL ".join(_job_parts(schema, number, rows, columns, state))
    kind = "e.kind <> 'forgotten'" if state is None else f"e.kind = {quote_text(state)}"
    return (
        f"SELECT {_list('outcomes', columns, _OUTCOME)} FROM {schema}.ended e "  # noqa: S608 - quoted
        f"WHERE e.q = {number}{_range('e.id', after, until)} AND {kind} "
        f"AND (e.expires_at IS NULL OR e.expires_at > (SELECT {schema}.tick(NULL)))"
    )


def packed_numbers(columns: Sequence[str]) -> tuple[str, ...]:
    """Return those of the columns that a statement packs into NUMBERS_COLUMN, in its order."""
    return tuple(name for name in columns if name in _NUMBERS)


def quote_text(text: str) -> str:
    """Return a text as a literal of SQL, for each value of the setting standard_conforming_strings."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _job_parts(
    schema: str, number: str, rows: str, columns: Sequence[str], state: State | None
) -> Iterator[str]:
    """Yield the SELECT of the current jobs and that of the successors, if `state` includes them."""
    if state != "blocked":
        found = f"SELECT {_list('jobs', columns, _JOB)} FROM {rows}"  # noqa: S608 - quoted
        yield found if state is None else f"{found} AND {_LIVE_FILTERS[state]}"
    if state in (None, "blocked"):
        # Postgres has no statistics of successors, expects one in nearly each row, and so reads the whole
        # table. ORDER BY makes it seek the first successor by their index, and skip the part without one.
        first = (
            f"SELECT o.id FROM {schema}.live o WHERE o.q = {number} "  # noqa: S608 - quoted
            "AND (o.next).seq IS NOT NULL ORDER BY o.q, o.id LIMIT 1"
        )
        found = f"SELECT {_list('jobs', columns, _SUCCESSOR)} FROM {rows}"  # noqa: S608 - quoted
        yield f"{found} AND (l.next).seq IS NOT NULL AND ({first}) IS NOT NULL"


def _list(table: ColumnTable, columns: Sequence[str], known: dict[str, str]) -> str:
    """Return the items of a SELECT: the columns that are no numbers, and NUMBERS_COLUMN if there are any."""
    listed = [f'{known[name]} AS "{name}"' for name in columns if name not in _NUMBERS]
    packed = [_packed(name, known[name], table) for name in packed_numbers(columns)]
    return ", ".join([*listed, f'{" || ".join(packed)} AS "{NUMBERS_COLUMN}"'] if packed else listed)


def _packed(name: str, value: str, table: ColumnTable) -> str:
    """Return a number as SQL of eight bytes."""
    number = f"({value})::integer" if name in _FLAGS else f"({value})::bigint"
    return (
        f"int8send(coalesce({number}, {NULL_NUMBER}))" if name in _NULLABLE[table] else f"int8send({number})"
    )


def _range(column: str, after: str | None, until: str | None) -> str:
    low = "" if after is None else f" AND {column} > {quote_text(sendable_id(after))}"
    return low if until is None else f"{low} AND {column} <= {quote_text(sendable_id(until))}"
