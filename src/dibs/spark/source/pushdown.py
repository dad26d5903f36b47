"""Filter pushdown: the filters of Spark that the data source applies itself.

Every comparison of a plain column with a literal is applied here, before rows become Arrow and go to the
JVM. Comparisons on queues, ids, states and offsets also reduce the data that is read from the storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import frozen
from pyspark.sql import datasource as ds

from dibs.client.options.arguments import EPOCH, MILLISECOND
from dibs.spark.schemas import Column, columns

_COMPARISONS: Final = (ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual)
#: Column types whose values compare in Python as in Spark.
_COMPARABLE: Final = ("text", "integer", "long", "flag", "time")


@frozen
class Predicate:
    """A comparison of one column with a literal."""

    column: Column
    #: Name of the filter class of Spark: EqualTo, In, IsNull and so on.
    operator_name: str
    value: Any


@frozen
class Predicates:
    """The predicates that were pushed down; a row must pass all of them."""

    predicates: tuple[Predicate, ...] = ()

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
    known = {column.name: column for column in columns(table)}
    predicates: list[Predicate] = []
    remaining: list[ds.Filter] = []
    for spark_filter in filters:
        predicate = _to_predicate(spark_filter, known)
        if predicate is None:
            remaining.append(spark_filter)
        else:
            predicates.append(predicate)
    return Predicates(tuple(predicates)), remaining


def _to_predicate(spark_filter: ds.Filter, known: dict[str, Column]) -> Predicate | None:
    path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
    if len(path) != 1 or path[0] not in known:
        return None
    column = known[path[0]]
    if isinstance(spark_filter, (ds.IsNull, ds.IsNotNull)):
        return Predicate(column, type(spark_filter).__name__, None)
    if column.kind not in _COMPARABLE or not isinstance(spark_filter, (ds.In, *_COMPARISONS)):
        return None
    if isinstance(spark_filter, ds.In):
        return Predicate(column, "In", tuple(_to_row_value(column, value) for value in spark_filter.value))
    return Predicate(
        column,
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
