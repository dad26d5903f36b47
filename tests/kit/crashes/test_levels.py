"""L3 on storages of dibs, and planted faults that only a dead or stopped client reveals."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dibs.storage.file import FileStorage
from dibs_conformance.crashes import line_kills
from dibs_conformance.crashes.interrupted_calls import try_cancellation
from dibs_conformance.crashes.levels import clients_that_die
from dibs_conformance.crashes.line_kills import try_kills_and_stops
from dibs_conformance.crashes.scenes import SCENES
from dibs_conformance.report.values import level_verdict
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.concurrent.test_levels import ALONE, SHARED, run_level
from tests.kit.crashes.torn_storage import TORN, open_torn, open_torn_verb


def test_memory_survives_cancelled_callers() -> None:
    found = run_level(clients_that_die, "memory:", ALONE, 1)

    assert "reached" == level_verdict(found), found
    assert {"kill -9", "stop and continue", "cut connections", "power loss"} == {
        gap.name for gap in found.spared
    }


def test_a_settlement_cancelled_by_half_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug settles in two steps, with an await in between."""
    settle = FileStorage.settle

    async def in_two(self: FileStorage, queue: str, settlements: Any, *, now: int | None = None) -> Any:
        await self.report(queue, settlements[0].id, settlements[0].fence, b"0", now=now)
        await asyncio.sleep(0)
        return await settle(self, queue, settlements, now=now)

    monkeypatch.setattr(FileStorage, "settle", in_two)
    found = run_level(lambda plan: try_cancellation(plan, 0.0), f"file:{tmp_path}", SHARED, 1)

    assert "broken" == level_verdict(found)


def test_a_death_between_two_commits_is_caught(tmp_path: Path) -> None:
    """The planted bug settles in two steps, in processes that the kit kills at any line."""
    plan = LevelPlan(
        locations=Locations(partial(open_torn, str(tmp_path))), claims=SHARED, seed=1, budget=0, examples=200
    )

    found = try_kills_and_stops(plan, 0.0)

    assert "broken" == level_verdict(found)
    assert found.failures[0].story


@pytest.mark.parametrize("verb", TORN)
def test_a_death_in_a_call_on_a_queue_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """This test tries only the scene of the verb, while the level tries every scene in turn."""
    monkeypatch.setattr(line_kills, "SCENES", {verb: SCENES[verb]})
    target = partial(open_torn_verb, verb, str(tmp_path))
    plan = LevelPlan(locations=Locations(target), claims=SHARED, seed=1, budget=0, examples=60)

    assert "broken" == level_verdict(try_kills_and_stops(plan, 0.0))
