"""Filter pushdown: the filters of Spark that the data source applies itself.

Every comparison of a plain column with a literal is applied here, before rows become Arrow and go to the
JVM. Comparisons on queues, ids, states and offsets also reduce the data that is read from the storage.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import frozen
from pyspark.sql import datasource as ds

from dibs.client.options.durations import EPOCH, MILLISECOND
from dibs.spark.schemas import Column, columns
from dibs.spark.source.rows import Row

_COMPARISONS: Final[dict[type[ds.Filter], Callable[[Any, Any], bool]]] = {
    ds.EqualTo: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
}
#: Column types whose values compare in Python as in Spark.
_COMPARABLE: Final = ("text", "integer", "long", "flag", "time")


@frozen
class Predicate:
    """A comparison of one column with a literal."""

    column: Column
    #: Index of the column in a row.
    index: int
    #: Name of the filter class of Spark: EqualTo, In, IsNull and so on.
    operator_name: str
    value: Any

    def passes(self, row: Row) -> bool:
        """Return whether a row passes; as in SQL, a comparison with null is false."""
        found = row[self.index]
        if self.operator_name == "IsNull":
            return found is None
        if found is None or self.operator_name == "IsNotNull":
            return found is not None
        return bool(
            found in self.value
            if self.operator_name == "In"
            else _COMPARISONS_BY_NAME[self.operator_name](found, self.value)
        )


_COMPARISONS_BY_NAME: Final = {kind.__name__: operator_name for kind, operator_name in _COMPARISONS.items()}


@frozen
class Predicates:
    """The predicates that were pushed down; a row must pass all of them."""

    predicates: tuple[Predicate, ...] = ()

    def filter_rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that pass all predicates."""
        if not self.predicates:
            return list(rows)
        return [row for row in rows if all(predicate.passes(row) for predicate in self.predicates)]

    def allowed_values(self, name: str) -> tuple[str, ...] | None:
        """Return the values that the predicates allow for a column, sorted; None if they allow any value."""
        named = [
            set(predicate.value if predicate.operator_name == "In" else (predicate.value,))
            for predicate in self.predicates
            if predicate.column.name == name and predicate.operator_name in ("EqualTo", "In")
        ]
        return tuple(sorted(set.intersection(*named))) if named else None

    def offset_after(self) -> str | None:
        """Return the offset that all rows must be behind to pass, or None."""
        return max(
            (str(predicate.value) for predicate in self._offset_predicates("GreaterThan")), default=None
        )

    def offset_until(self) -> str | None:
        """Return the largest offset that a row can have to pass, or None."""
        return min(
            (str(predicate.value) for predicate in self._offset_predicates("LessThan", "LessThanOrEqual")),
            default=None,
        )

    def _offset_predicates(self, *operator_name: str) -> Iterator[Predicate]:
        return (
            predicate
            for predicate in self.predicates
            if predicate.column.name == "offset" and predicate.operator_name in operator_name
        )


def split_filters(table: str, filters: Sequence[ds.Filter]) -> tuple[Predicates, list[ds.Filter]]:
    """Return the filters that this module applies, as predicates, and the filters that Spark must apply."""
    indexes = {column.name: (index, column) for index, column in enumerate(columns(table))}
    predicates: list[Predicate] = []
    remaining: list[ds.Filter] = []
    for spark_filter in filters:
        predicate = _to_predicate(spark_filter, indexes)
        if predicate is None:
            remaining.append(spark_filter)
        else:
            predicates.append(predicate)
    return Predicates(tuple(predicates)), remaining


def _to_predicate(spark_filter: ds.Filter, indexes: dict[str, tuple[int, Column]]) -> Predicate | None:
    path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
    if len(path) != 1 or path[0] not in indexes:
        return None
    index, column = indexes[path[0]]
    if isinstance(spark_filter, (ds.IsNull, ds.IsNotNull)):
        return Predicate(column, index, type(spark_filter).__name__, None)
    if column.kind not in _COMPARABLE or not isinstance(spark_filter, (ds.In, *_COMPARISONS)):
        return None
    if isinstance(spark_filter, ds.In):
        return Predicate(
            column, index, "In", tuple(_to_row_value(column, value) for value in spark_filter.value)
        )
    return Predicate(
        column,
        index,
        type(spark_filter).__name__,
        _to_row_value(column, getattr(spark_filter, "value", None)),
    )


def _to_row_value(column: Column, value: Any) -> Any:
    """Return a literal in the form that rows have: a time is a number of ms, which may have a fraction."""
    if column.kind != "time" or not isinstance(value, datetime):
        return value
    # Spark pushes down a time in the session's time zone. Without a zone, it is in the zone of this process.
    moment = value if value.tzinfo else value.astimezone()
    return (moment - EPOCH) / MILLISECOND
