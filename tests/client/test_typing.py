"""mypy agrees with typing_cases.py: an error that is missing is an unused ignore, and fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent


def test_calls_are_typed_as_the_functions_are() -> None:
    words = ["-m", "mypy", "tests/client/typing_cases.py"]
    told = subprocess.run([sys.executable, *words], cwd=PROJECT, capture_output=True, text=True, check=False)

    assert told.returncode == 0, told.stdout
