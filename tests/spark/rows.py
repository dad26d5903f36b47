"""The tables of a warehouse as dictionaries, to be compared with what was counted by hand."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.spark.history.tables import read
from dibs.spark.history.warehouse import Warehouse
from tests.spark.frames import ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(spark: SparkSession, warehouse: Path, table: str, *key: str) -> dict[Any, dict[str, Any]]:
    """A table by key, times as ms, queues by their own names."""
    found: dict[Any, dict[str, Any]] = {}
    now = Warehouse.existing(warehouse)
    for row in read(spark, table, now.table(table)).collect():
        told: dict[str, Any] = {
            name: ms(v) if isinstance(v, datetime) else v for name, v in row.asDict().items()
        }
        told["queue"] = now.state.names.get(told["queue"], told["queue"])
        del told["date"]
        place = tuple(told.pop(name) for name in key)
        assert place not in found
        found[place] = told
    return found
