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


@pytest.mark.parametrize("title", [block.title for block in PAGE.files])
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


def test_the_page_has_four_programs() -> None:
    assert ["orders.py", "plain.py", "busy.py", "retry.py"] == [block.title for block in PAGE.files]
