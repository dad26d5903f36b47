"""Each storage of ours reaches its highest level: briefly here, for as long as one likes in the long form.

    DIBS_CERTIFY_BUDGET=3600 nox -s certify -- postgres

gives each storage an hour of new examples; the seed of a run that fails is in its report.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dibs_conformance import certify
from dibs_conformance.servers import PostgresServer, RedisServer

#: Seconds for each storage in the long form.
BUDGET = float(os.environ.get("DIBS_CERTIFY_BUDGET", "240"))
#: Histories on each level here; of crashes and outages as many as show anything.
FEW = 9


def reaches(target: str, level: str, examples: int | None = FEW) -> None:
    """The report is printed: `pytest -rP` shows it, with its seed, also of what passed."""
    report = certify(target, level, BUDGET, 20_261_121 if examples else None, examples=examples)
    sys.stdout.write(f"{report.text()}\n")

    assert report.certified, report.text()


def test_memory_reaches_l3() -> None:
    reaches("memory:", "L3")


def test_file_reaches_l3(tmp_path: Path) -> None:
    reaches(f"file:{tmp_path}?fsync=1", "L3")


def test_redis_reaches_l4(redis_server: RedisServer) -> None:
    reaches(redis_server.url, "L4")


def test_postgres_reaches_l4(postgres_server: PostgresServer) -> None:
    reaches(postgres_server.url, "L4")


@pytest.mark.certify
def test_memory_reaches_l3_for_long() -> None:
    reaches("memory:", "L3", None)


@pytest.mark.certify
@pytest.mark.parametrize("options", ["", "?fsync=1"])
def test_file_reaches_l3_for_long(tmp_path: Path, options: str) -> None:
    reaches(f"file:{tmp_path}{options}", "L3", None)


@pytest.mark.certify
def test_redis_reaches_l4_for_long(redis_server: RedisServer) -> None:
    reaches(redis_server.url, "L4", None)


@pytest.mark.certify
def test_postgres_reaches_l4_for_long(postgres_server: PostgresServer) -> None:
    reaches(postgres_server.url, "L4", None)
