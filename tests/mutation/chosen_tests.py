"""A plugin of pytest: runs the chosen tests in the chosen order, and writes down how long each test takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests named in the file $DIBS_CHOSEN_TESTS, in the order of that file."""
    if (file := os.environ.get("DIBS_CHOSEN_TESTS")) is None:
        return
    place = {name: at for at, name in enumerate(Path(file).read_text("utf-8").splitlines())}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in place])
    items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])


def pytest_runtest_setup() -> None:
    """Trace this test, too: an earlier test may have replaced the trace function of the thread."""
    if (recorder := sys.modules.get("sitecustomize")) is not None and "DIBS_TRACED_CALLS" in os.environ:
        sys.settrace(recorder.record)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append the seconds of each phase of a test to the file $DIBS_TEST_SECONDS."""
    if (file := os.environ.get("DIBS_TEST_SECONDS")) is not None:
        with Path(file).open("a", encoding="utf-8") as seconds:
            seconds.write(f"{report.nodeid}\t{report.duration:.3f}\n")
