"""The pages on Spark: their code blocks run with a Spark session, and their columns are those of the
tables.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from jinja2 import Environment
from pyspark.errors import PySparkException

from dibs.spark.history.increments import update
from dibs.spark.history.reading import table_files
from dibs.spark.schemas import COLUMNS, Column, ColumnType
from tests.docs.pages import DOCS, OUTPUT, Page
from tests.spark.source_storages import at, run_some
from tests.spark.source_stream import is_starved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The types of columns in Spark's DDL.
WORDS: Final[dict[ColumnType, str]] = {
    "text": "string", "bytes": "binary", "integer": "int", "long": "bigint", "flag": "boolean",
    "time": "timestamp", "texts": "map<string,string>",
}  # fmt: skip


def test_every_block_prints_its_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's processes keep their working directory, so relative paths are made absolute."""
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in Page("howto/spark.md").blocks if block.has_mark("in-spark")]
    for block in blocks:
        text = run(block.text.replace("./", f"{tmp_path}/"), names)

        printed = [line for line in text.splitlines() if line and line[0] not in "+|"]
        assert OUTPUT.findall(block.text) == printed
    assert len(blocks) == 8


def test_the_recipes_for_pipelines_print_their_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks without Spark run in tests/docs, and the block with Kafka does not run."""
    page = Page("howto/data_pipelines.md")
    page.save(tmp_path, **{"./": f"{tmp_path}/"})
    monkeypatch.syspath_prepend(str(tmp_path))
    at(f"file:{tmp_path}/jobs", lambda storage: run_some(storage, "mail", ["a", "b", "c"]))
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in page.blocks if block.has_mark("in-spark")]
    for block in blocks:
        text = run(block.text.replace("./", f"{tmp_path}/"), names)

        printed = [line for line in text.splitlines() if line and line[0] not in "+|"]
        assert OUTPUT.findall(block.text) == printed
    assert len(blocks) == 5
    page.unload()


def test_the_model_of_dbt_makes_its_table(tmp_path: Path) -> None:
    """DuckDB downloads its delta_scan; a macro with the files of the table stands for it."""
    at(f"file:{tmp_path}/jobs", lambda storage: run_some(storage, "mail", ["a", "b", "c"]))
    update(f"file:{tmp_path}/jobs", tmp_path / "history", engine="duckdb")
    [model] = (block.text for block in Page("howto/data_pipelines.md").files if "models/" in block.title
               and block.language == "sql")  # fmt: skip
    select = Environment().from_string(model).render(config=lambda **_: "")
    files = table_files(tmp_path / "history", "events")
    with duckdb.connect() as database:
        database.execute(f"CREATE MACRO delta_scan(path) AS TABLE SELECT * FROM read_parquet({files!r})")
        rows = database.sql(select).fetchall()

    assert [("mail", 3, 0)] == [(queue, runs, failed) for queue, _, runs, failed, _ in rows]


def run(code: str, names: dict[str, Any]) -> str:
    """Return the output of a block; a stream is started again if its Python process started too slowly."""
    for _ in range(20):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            try:
                exec(code, names)
            except PySparkException as error:
                if "readStream" in code and is_starved(error):
                    continue
                raise
        return output.getvalue()
    raise TimeoutError("the Python process of the stream did not start within ten seconds, 20 times")


def test_the_columns_on_the_page_are_those_of_the_tables() -> None:
    page = (DOCS / "reference/spark.md").read_text("utf-8")

    for table, columns in COLUMNS.items():
        assert f"### {table}\n\n```text\n{described(columns)}\n```\n" in page


def described(columns: Iterable[Column]) -> str:
    """Return columns in the form of the page: one per line, with type and nullability."""
    return "\n".join(
        f"{column.name:<16} {WORDS[column.kind]}{'' if column.nullable else ', never null'}"
        for column in columns
    )
