"""mypy accepts typing_app.py and typing_cases.py, where each wrong call has an ignore that must be needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent


@pytest.mark.long
def test_calls_are_typed_as_the_functions_are() -> None:
    command = [sys.executable, "-m", "mypy", "tests/client/typing_cases.py", "tests/client/typing_app.py"]
    checked = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout
