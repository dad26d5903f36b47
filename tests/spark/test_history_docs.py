"""The reference of the warehouse's tables names exactly their columns."""

from __future__ import annotations

import re

import pytest

from dibs.spark.history.tables import IDS_COLUMNS, LIVE_COLUMNS, METRICS_COLUMNS
from tests.source import PROJECT

PAGE = (PROJECT / "docs/reference/warehouse.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("table", "columns"),
    [("metrics", METRICS_COLUMNS), ("ids", IDS_COLUMNS), ("live", LIVE_COLUMNS)],
    ids=["metrics", "ids", "live"],
)
def test_the_page_names_the_columns_of(table: str, columns: dict[str, str]) -> None:
    section = PAGE.partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)

    assert sorted(columns) == sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))
