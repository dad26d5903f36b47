"""The picture shows the worker's own functions, under a title of its own."""

from __future__ import annotations

from pathlib import Path
from subprocess import CalledProcessError

import pytest
from benchmarks.flame import draw, spy


def test_a_picture_names_what_the_worker_does(tmp_path: Path) -> None:
    try:
        spy()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    picture = tmp_path / "worker.svg"
    try:
        draw("memory:", 20_000, picture, "what it does")
    except CalledProcessError as error:
        pytest.skip(f"py-spy may not look here: {error.stderr!r:.200}")
    drawn = picture.read_text()

    assert "dibs/worker/dispatch/worker.py" in drawn
    assert "what it does" in drawn
    assert "py-spy record" not in drawn
