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
_PLAIN: Final = ("text", "integer", "long", "flag", "time")


class Test(Struct, frozen=True):
    """One comparison: a column's place, what is done with it, and with what."""

    column: Column
    place: int
    how: str
    value: Any

    def passes(self, row: Row) -> bool:
        """Tell whether a row stays; as in SQL, null compares with nothing."""
        found = row[self.place]
        if self.how == "IsNull":
            return found is None
        if found is None or self.how == "IsNotNull":
            return found is not None
        return bool(found in self.value if self.how == "In" else _BY_NAME[self.how](found, self.value))


_BY_NAME: Final = {kind.__name__: how for kind, how in _COMPARED.items()}


class Narrowing(Struct, frozen=True):
    """All comparisons that were handed down; a row must pass every one."""

    tests: tuple[Test, ...] = ()

    def kept(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that pass."""
        if not self.tests:
            return list(rows)
        return [row for row in rows if all(test.passes(row) for test in self.tests)]

    def values(self, name: str) -> tuple[str, ...] | None:
        """Return the only values a column may have, if the filters name them; None if it may have any."""
        named = [
            set(test.value if test.how == "In" else (test.value,))
            for test in self.tests
            if test.column.name == name and test.how in ("EqualTo", "In")
        ]
        return tuple(sorted(set.intersection(*named))) if named else None

    def after(self) -> str | None:
        """Return the offset behind which everything lies that passes."""
        return max((str(test.value) for test in self._on_offset("GreaterThan")), default=None)

    def until(self) -> str | None:
        """Return the offset up to which everything lies that passes."""
        return min((str(test.value) for test in self._on_offset("LessThan", "LessThanOrEqual")), default=None)

    def _on_offset(self, *how: str) -> Iterator[Test]:
        return (test for test in self.tests if test.column.name == "offset" and test.how in how)


def narrowed(table: str, filters: Sequence[ds.Filter]) -> tuple[Narrowing, list[ds.Filter]]:
    """Return what can be done here, and the filters that remain for Spark."""
    places = {column.name: (place, column) for place, column in enumerate(columns(table))}
    tests: list[Test] = []
    remaining: list[ds.Filter] = []
    for given in filters:
        test = _test(given, places)
        if test is None:
            remaining.append(given)
        else:
            tests.append(test)
    return Narrowing(tuple(tests)), remaining


def _test(given: ds.Filter, places: dict[str, tuple[int, Column]]) -> Test | None:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in places:
        return None
    place, column = places[path[0]]
    if isinstance(given, (ds.IsNull, ds.IsNotNull)):
        return Test(column, place, type(given).__name__, None)
    if column.kind not in _PLAIN or not isinstance(given, (ds.In, *_COMPARED)):
        return None
    if isinstance(given, ds.In):
        return Test(column, place, "In", tuple(_stored(column, value) for value in given.value))
    return Test(column, place, type(given).__name__, _stored(column, getattr(given, "value", None)))


def _stored(column: Column, value: Any) -> Any:
    """Return a literal as rows have it: times are ms there, and may fall between two."""
    if column.kind != "time" or not isinstance(value, datetime):
        return value
    # Spark hands down a time of the session's zone; without a zone it is this process's own.
    moment = value if value.tzinfo else value.astimezone()
    return (moment - EPOCH) / MILLISECOND
