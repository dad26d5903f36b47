"""The pages on Spark tell what is so. Blocks run here and not with those of other pages: here is a Spark."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException

from dibs.spark.schemas import COLUMNS, Column, ColumnType
from tests.docs.pages import DOCS, SHOWN, Page
from tests.spark.source_stream import is_starved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The kinds of columns as Spark calls them.
WORDS: Final[dict[ColumnType, str]] = {
    "text": "string", "bytes": "binary", "integer": "int", "long": "bigint", "flag": "boolean",
    "time": "timestamp", "texts": "map<string,string>",
}  # fmt: skip


def test_every_block_prints_what_it_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own processes do not follow into another folder, so relative paths are made absolute."""
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in Page("howto/spark.md").blocks if block.language == "python"]
    for block in blocks:
        if "session()" in block.text or "run_workers" in block.text:
            continue
        text = run(block.text.replace("./", f"{tmp_path}/"), names)

        printed = [line for line in text.splitlines() if line and line[0] not in "+|"]
        assert SHOWN.findall(block.text) == printed
    assert len(blocks) == 8


def run(code: str, names: dict[str, Any]) -> str:
    """Return what a block prints; one that follows is begun again where its Python was late to start."""
    for _ in range(20):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            try:
                exec(code, names)
            except PySparkException as error:
                if "readStream" in code and is_starved(error):
                    continue
                raise
        return output.getvalue()
    raise TimeoutError("its Python never started in time")


def test_the_columns_on_the_page_are_those_of_the_tables() -> None:
    page = (DOCS / "reference/spark.md").read_text("utf-8")

    for table, columns in COLUMNS.items():
        assert f"### {table}\n\n```text\n{described(columns)}\n```\n" in page


def described(columns: Iterable[Column]) -> str:
    """Return columns as the page has them: one a line, and whether it may be null."""
    return "\n".join(
        f"{column.name:<16} {WORDS[column.kind]}{'' if column.nullable else ', never null'}"
        for column in columns
    )
