"""Reads of whole tables as columns, by the SQL of a storage and a driver that makes Arrow of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from attrs import field, frozen

from dibs.model.results import State

ColumnTable = Literal["jobs", "outcomes"]


@frozen
class ColumnQuery:
    """A statement of SQL that returns one column for each requested name, and where to run it."""

    #: A connection string of libpq; it may have a password.
    connection: str = field(repr=False)
    sql: str


@runtime_checkable
class ColumnQueries(Protocol):
    """The method of a storage whose server runs SQL. It has no part in the queue semantics."""

    async def column_query(
        self,
        table: ColumnTable,
        queue: str,
        columns: Sequence[str],
        *,
        state: State | None = None,
        after: str | None = None,
        until: str | None = None,
    ) -> ColumnQuery:
        """Return the query of the current jobs and successors of a queue, or of its kept outcomes.

        `state` and the cursors have the meaning of `list`; None stands for all ids. The columns are the
        fields of Job, JobData, ActiveRun and Outcome with these types: times are ms; `attributes`, `error`,
        `origin` and `progress` are JSON texts; `handed_off` and `cancel_requested` are booleans;
        `memo_bytes` is the size of the memo.
        """
        ...
