"""Planted races that only concurrent clients can find. The storages of dibs are tested in
tests/kit/test_certify_levels.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from dibs.storage import memory
from dibs.storage.capabilities import Capabilities
from dibs.storage.file.locks import CommitLock, Turn
from dibs_conformance.concurrent.levels import interleaved, unscheduled
from dibs_conformance.report import Findings
from dibs_conformance.report.values import level_verdict
from dibs_conformance.target import LevelPlan, Locations, RunLevel

ALONE = Capabilities(manual_clock=True, cross_queue=True)
SHARED = Capabilities(manual_clock=True, cross_queue=True, durable=True, shared=True)
#: In fifty runs, every planted race was found in fewer examples.
MAX_EXAMPLES = 300


def run_level(run: RunLevel, target: str, claims: Capabilities, examples: int, seed: int = 1) -> Findings:
    locations = Locations(target)
    try:
        return run(LevelPlan(locations=locations, claims=claims, seed=seed, budget=600, examples=examples))
    finally:
        locations.remove_all()


def test_memory_without_its_lock_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its lock, the memory storage is correct for one call at a time, but not for interleaved
    calls.
    """
    made = memory.SharedIndex.__init__

    def unlocked(self: memory.SharedIndex) -> None:
        made(self)
        self.lock = nullcontext()  # type: ignore[assignment]

    monkeypatch.setattr(memory.SharedIndex, "__init__", unlocked)
    found = run_level(interleaved, "memory:", ALONE, MAX_EXAMPLES)

    assert "broken" == level_verdict(found)
    assert found.failures[0].story


def test_file_without_its_lock_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def hold(_: CommitLock, turn: Turn) -> Iterator[None]:
        turn.take()
        yield

    monkeypatch.setattr(CommitLock, "hold", hold)
    found = run_level(interleaved, f"file:{tmp_path}", SHARED, MAX_EXAMPLES)

    assert "broken" == level_verdict(found)


def test_a_short_run_of_threads_reads_the_log() -> None:
    found = run_level(unscheduled, "memory:", ALONE, 0)

    assert [] == [law.name for law in found.laws if not law.met]
