"""Filters that Spark hands down: what they let the storage leave out, and what is left out on the way.

Every comparison of a plain column with a literal is made here, before rows become Arrow and travel to the
JVM. Those that name queues, ids, states or offsets besides spare the storage what they rule out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import datasource as ds

from dibs.client.options.durations import EPOCH, MILLISECOND
from dibs.spark.schemas import Column, columns
from dibs.spark.source.rows import Row

_COMPARED: Final[dict[type[ds.Filter], Callable[[Any, Any], bool]]] = {
    ds.EqualTo: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
}
#: Kinds of columns whose values compare here as they do in Spark.
_COMPARABLE: Final = ("text", "integer", "long", "flag", "time")


class Predicate(Struct, frozen=True):
    """One comparison: a column's place, what is done with it, and with what."""

    column: Column
    index: int
    operator_name: str
    value: Any

    def passes(self, row: Row) -> bool:
        """Tell whether a row stays; as in SQL, null compares with nothing."""
        found = row[self.index]
        if self.operator_name == "IsNull":
            return found is None
        if found is None or self.operator_name == "IsNotNull":
            return found is not None
        return bool(
            found in self.value
            if self.operator_name == "In"
            else _BY_NAME[self.operator_name](found, self.value)
        )


_BY_NAME: Final = {kind.__name__: operator_name for kind, operator_name in _COMPARED.items()}


class Predicates(Struct, frozen=True):
    """All comparisons that were handed down; a row must pass every one."""

    predicates: tuple[Predicate, ...] = ()

    def filter_rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that pass."""
        if not self.predicates:
            return list(rows)
        return [row for row in rows if all(predicate.passes(row) for predicate in self.predicates)]

    def allowed_values(self, name: str) -> tuple[str, ...] | None:
        """Return the only values a column may have, if the filters name them; None if it may have any."""
        named = [
            set(predicate.value if predicate.operator_name == "In" else (predicate.value,))
            for predicate in self.predicates
            if predicate.column.name == name and predicate.operator_name in ("EqualTo", "In")
        ]
        return tuple(sorted(set.intersection(*named))) if named else None

    def offset_after(self) -> str | None:
        """Return the offset behind which everything lies that passes."""
        return max((str(predicate.value) for predicate in self._on_offset("GreaterThan")), default=None)

    def offset_until(self) -> str | None:
        """Return the offset up to which everything lies that passes."""
        return min(
            (str(predicate.value) for predicate in self._on_offset("LessThan", "LessThanOrEqual")),
            default=None,
        )

    def _on_offset(self, *operator_name: str) -> Iterator[Predicate]:
        return (
            predicate
            for predicate in self.predicates
            if predicate.column.name == "offset" and predicate.operator_name in operator_name
        )


def split_filters(table: str, filters: Sequence[ds.Filter]) -> tuple[Predicates, list[ds.Filter]]:
    """Return what can be done here, and the filters that remain for Spark."""
    indexes = {column.name: (index, column) for index, column in enumerate(columns(table))}
    predicates: list[Predicate] = []
    remaining: list[ds.Filter] = []
    for given in filters:
        predicate = _predicate(given, indexes)
        if predicate is None:
            remaining.append(given)
        else:
            predicates.append(predicate)
    return Predicates(tuple(predicates)), remaining


def _predicate(given: ds.Filter, indexes: dict[str, tuple[int, Column]]) -> Predicate | None:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in indexes:
        return None
    index, column = indexes[path[0]]
    if isinstance(given, (ds.IsNull, ds.IsNotNull)):
        return Predicate(column, index, type(given).__name__, None)
    if column.kind not in _COMPARABLE or not isinstance(given, (ds.In, *_COMPARED)):
        return None
    if isinstance(given, ds.In):
        return Predicate(column, index, "In", tuple(_row_value(column, value) for value in given.value))
    return Predicate(column, index, type(given).__name__, _row_value(column, getattr(given, "value", None)))


def _row_value(column: Column, value: Any) -> Any:
    """Return a literal as rows have it: times are ms there, and may fall between two."""
    if column.kind != "time" or not isinstance(value, datetime):
        return value
    # Spark hands down a time of the session's zone; without a zone it is this process's own.
    moment = value if value.tzinfo else value.astimezone()
    return (moment - EPOCH) / MILLISECOND
