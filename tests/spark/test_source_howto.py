"""The page on Spark does what it says. Its blocks run here and not with the others': here is a Spark."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.pages import SHOWN, Page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_block_prints_what_it_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own processes do not follow into another folder, so relative paths are made absolute."""
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in Page("howto/spark.md").blocks if block.language == "python"]
    for block in blocks:
        if "session()" in block.text or "run_workers" in block.text:
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(block.text.replace("./", f"{tmp_path}/"), names)

        printed = [line for line in output.getvalue().splitlines() if line and line[0] not in "+|"]
        assert SHOWN.findall(block.text) == printed
    assert len(blocks) == 8
