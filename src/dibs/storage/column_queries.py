"""Reads of whole tables as columns, by the SQL of a storage and a driver that makes Arrow of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol, runtime_checkable

from attrs import field, frozen

from dibs.model.results import State

ColumnTable = Literal["jobs", "outcomes"]

#: The column of a ColumnQuery that holds all numbers of a row.
NUMBERS_COLUMN: Final = "numbers"
#: The number that stands for null. No number of a job or an outcome is negative, except priorities.
NULL_NUMBER: Final = -(2**63) + 1


@frozen
class ColumnQuery:
    """A statement of SQL that reads the requested columns, and where to run it.

    It returns a column for each name that is not in `numbers`. The numbers of a row come together in the
    bytes column NUMBERS_COLUMN, if there are any.
    """

    #: A connection string of libpq; it may have a password.
    connection: str = field(repr=False)
    sql: str
    #: The columns in NUMBERS_COLUMN, each as a big-endian integer of 64 bits, with NULL_NUMBER for null. The
    #: driver takes 40 to 55 ns for each value or null of a separate column.
    numbers: tuple[str, ...] = ()


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
        `origin` and `progress` are JSON texts; `handed_off` and `cancel_requested` are the numbers 0 and 1;
        `memo_bytes` is the size of the memo.
        """
        ...
