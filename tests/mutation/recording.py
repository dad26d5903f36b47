"""Records which tests call which functions, in one run of the tests of an area on the unchanged code."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from tests.mutation.areas import Area
from tests.mutation.calls import RecordedCalls, read_calls
from tests.mutation.runs import run_pytest
from tests.mutation.trees import environment
from tests.mutation.verdict import Verdict

#: The folder of the module sitecustomize, which records the calls.
TRACING: Final = Path(__file__).with_name("tracing")


def record_calls(tree: Path, area: Area, limit: float) -> tuple[Verdict, RecordedCalls]:
    """Run the tests of an area. Return "survived" if they pass, and the recorded calls."""
    with TemporaryDirectory(prefix="calls_", dir=tree.parent) as name:
        folder = Path(name)
        (folder / "calls").mkdir()
        (folder / "seconds").touch()
        began = time.monotonic()
        verdict = run_pytest(tree, [area.tests], limit, tracing_environment(tree, folder))
        seconds = round(time.monotonic() - began, 1)
        return msgspec.structs.replace(verdict, seconds=seconds), read_calls(folder)


def tracing_environment(tree: Path, folder: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(TRACING), environment(tree)["PYTHONPATH"]]),
        "DIBS_TRACED_SOURCE": f"{tree}/",
        "DIBS_TRACED_CALLS": str(folder / "calls"),
        "DIBS_TEST_SECONDS": str(folder / "seconds"),
    }
