"""A program that is a client of Spark Connect. Its process has no Java and no `sparkContext`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import PROJECT
from tests.spark.standalone import connect_server  # noqa: F401 - a fixture
from tests.storage_urls import new_url

pytestmark = pytest.mark.xdist_group("spark")


def test_a_client_of_spark_connect_uses_each_function(
    connect_server: str,  # noqa: F811
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    url = new_url("redis", request)
    command = [sys.executable, "-m", "tests.spark.connect_program", connect_server, url, str(tmp_path)]

    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=600)

    assert 0 == ran.returncode, ran.stderr[-4000:]
    assert {
        "rows": 40,
        "repeated": 40,
        "here": 40,
        "waiting": 40,
        "completed": 40,
        "results": [2 * number for number in range(40)],
        "replayed": [{"queued": 2}],
        "followed": 42,
        "collected": 42,
        "stored": 42,
    } == json.loads((tmp_path / "found.json").read_text())
