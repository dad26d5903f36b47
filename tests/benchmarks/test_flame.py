"""The flame graph shows functions of the worker, and has our title."""

from __future__ import annotations

from pathlib import Path
from subprocess import CalledProcessError

import pytest
from benchmarks.flame import draw, find_py_spy


def test_a_flame_graph_names_functions_of_the_worker(tmp_path: Path) -> None:
    try:
        find_py_spy()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    picture = tmp_path / "worker.svg"
    try:
        draw("memory:", 20_000, picture, "CPU of a worker")
    except CalledProcessError as error:
        pytest.skip(f"py-spy has no permission: {error.stderr!r:.200}")
    drawn = picture.read_text()

    assert "dibs/worker/" in drawn
    assert "CPU of a worker" in drawn
    assert "py-spy record" not in drawn
