"""System calls that kill a process or fail, made by Python or by a library in C."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from dibs_conformance.crashes.line_kills import (
    SystemCall,
    Trace,
    injection_options,
    try_system_call_kills,
)
from dibs_conformance.report import Findings
from dibs_conformance.report.values import level_verdict
from dibs_conformance.target import LevelPlan, Locations, OpenStorage
from tests.kit.concurrent.test_levels import SHARED
from tests.kit.crashes.torn_storage import open_torn

strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
#: With each of twenty seeds, fewer kills found the planted fault.
MAX_POINTS = 120


def run_level(target: str | OpenStorage, examples: int) -> Findings:
    locations = Locations(target)
    try:
        return try_system_call_kills(
            LevelPlan(locations=locations, claims=SHARED, seed=1, budget=0, examples=examples), 0.0
        )
    finally:
        locations.remove_all()


@strace
def test_the_file_storage_survives_failed_system_calls(tmp_path: Path) -> None:
    found = run_level(f"file:{tmp_path}", 5)

    assert "reached" == level_verdict(found), found
    assert found.faults["kill -9 at a system call"]
    assert found.faults["system call failed"]


@strace
def test_a_death_between_two_commits_is_caught(tmp_path: Path) -> None:
    """The planted bug settles in two steps; the kit kills at a system call, not at a line of Python."""
    assert "broken" == level_verdict(run_level(partial(open_torn, str(tmp_path)), MAX_POINTS))


def test_without_strace_no_law_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    found = run_level(f"file:{tmp_path}", 1)

    assert not found.laws
    assert ["strace is not installed"] == [gap.why for gap in found.untested]


def test_calls_are_counted_for_each_thread() -> None:
    """strace also counts separately for each thread. Calls on other files count, but are not returned."""
    trace = Trace(7, ["7 read(3<pipe>, 4) = 4", "8 read(4</here/a>, 4) = 4", "7 read(4</here/a>, 4) = 4"])

    assert [SystemCall("read", 1, first=False), SystemCall("read", 2, first=True)] == trace.calls_below(
        "/here"
    )
    assert ("-e", "inject=read:error=EIO:when=2") == injection_options(
        SystemCall("read", 2, first=True), "error=EIO"
    )
