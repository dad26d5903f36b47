"""Planted races that only several clients can see; our own storages are in test_certify_levels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from dibs.storage import memory
from dibs.storage.capabilities import Capabilities
from dibs.storage.file.locks import CommitLock
from dibs_conformance.concurrent.levels import interleaved
from dibs_conformance.report import Findings
from dibs_conformance.report.findings import level_verdict
from dibs_conformance.target import LevelPlan, Locations, RunLevel

ALONE = Capabilities(manual_clock=True, cross_queue=True)
SHARED = Capabilities(manual_clock=True, cross_queue=True, durable=True, shared=True)
#: More than any planted race needed in fifty runs.
MAX_EXAMPLES = 300


def run_level(run: RunLevel, target: str, claims: Capabilities, examples: int, seed: int = 1) -> Findings:
    locations = Locations(target)
    try:
        return run(LevelPlan(locations=locations, claims=claims, seed=seed, budget=600, examples=examples))
    finally:
        locations.remove_all()


def test_memory_without_its_lock_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call at a time it is without fault; steps of two in turn tear it."""
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
    def hold(_: CommitLock) -> Iterator[None]:
        yield

    monkeypatch.setattr(CommitLock, "hold", hold)
    found = run_level(interleaved, f"file:{tmp_path}", SHARED, MAX_EXAMPLES)

    assert "broken" == level_verdict(found)
