"""A Postgres URL imports psycopg alone: no client library of another storage."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from dibs.storage.registry import open_storage
open_storage("postgresql://localhost/db")
print(sorted({"redis", "watchdog", "filelock"} & set(sys.modules)), "psycopg" in sys.modules)
"""


def test_postgres_imports_no_other_driver() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)

    assert "[] True" == ran.stdout.strip()
