"""The programs of the page about transactions print the output that it shows, on a private Postgres."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from dibs_conformance.servers import PostgresServer
from tests.docs.pages import Page

PAGE = Page("howto/transactions.md")


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """Return the URL of an empty database."""
    name = f"page_{os.urandom(4).hex()}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{postgres_server.url.rpartition('/')[0]}/{name}"


PROGRAMS = ["orders.py", "plain.py", "busy.py", "retry.py"]


@pytest.mark.parametrize("title", PROGRAMS)
def test_a_program_prints_its_output(title: str, database: str, tmp_path: Path) -> None:
    PAGE.save(tmp_path)
    (program,) = (block for block in PAGE.files if block.title == title)
    done = subprocess.run(
        [sys.executable, title],
        cwd=tmp_path,
        env={**os.environ, "DIBS_URL": database},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )

    shown = [line.strip().removeprefix("#> ") for line in program.text.splitlines() if "#> " in line]
    # The server of the tests runs without fsync, and dibs logs a warning when it opens the storage.
    assert [] == [line for line in done.stderr.splitlines() if "fsync is off" not in line]
    assert 0 == done.returncode
    assert shown == done.stdout.splitlines()


def test_the_tests_on_the_page_pass(database: str, tmp_path: Path) -> None:
    assert [*PROGRAMS, "shipping.py", "tests/test_shipping.py"] == PAGE.save(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={**os.environ, "DIBS_URL": database},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )

    assert 0 == done.returncode, done.stdout
