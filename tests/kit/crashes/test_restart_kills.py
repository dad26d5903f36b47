"""Kills and power cuts of the only process of a storage, and claims that cannot be tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs_conformance.crashes.levels import tests_for as fault_tests
from dibs_conformance.crashes.power_loss import try_power_cuts, try_power_loss, try_restarts
from dibs_conformance.report import Findings
from dibs_conformance.report.values import level_verdict
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.concurrent.test_levels import SHARED
from tests.kit.crashes.dishonest_storages import UNSHARED, Target

#: Kills after which each planted bug was found, with each of ten seeds.
MANY = 60


def plan_for(kind: str, folder: Path, examples: int) -> LevelPlan:
    locations = Locations(Target(kind, folder))
    claims = SHARED if kind.startswith("unsynced") else UNSHARED
    return LevelPlan(locations=locations, claims=claims, seed=1, budget=0, examples=examples)


def test_an_unshared_storage_survives_the_death_of_its_process(tmp_path: Path) -> None:
    found = try_restarts(plan_for("unshared", tmp_path, 5), 0.0)

    assert "reached" == level_verdict(found), found
    assert 5 == found.faults["kill -9 of the only process"]


def test_a_late_commit_is_caught(tmp_path: Path) -> None:
    found = try_restarts(plan_for("late", tmp_path, MANY), 0.0)

    assert "broken" == level_verdict(found)
    assert found.failures[0].story


def test_a_device_whose_power_is_cut_keeps_what_was_synced(tmp_path: Path) -> None:
    found = try_power_cuts(plan_for("cached", tmp_path, 5), 0.0)

    assert "reached" == level_verdict(found), found
    assert 5 == found.faults["power loss"]


def test_a_forgotten_sync_is_caught_on_a_device(tmp_path: Path) -> None:
    assert "broken" == level_verdict(try_power_cuts(plan_for("cached, forgetful", tmp_path, MANY), 0.0))


def test_a_forgotten_sync_is_caught_in_a_folder_of_any_target(tmp_path: Path) -> None:
    found = try_power_loss(plan_for("unsynced, with its folder", tmp_path, 0), 0.0)

    assert "broken" == level_verdict(found)


@pytest.mark.parametrize(
    ("kind", "untested", "test"),
    [
        ("unsynced", ["power loss"], None),
        ("unsynced, with its folder", [], try_power_loss),
        ("cached", [], try_power_cuts),
        ("unshared", [], None),
    ],
)
def test_a_claim_without_a_hook_is_not_tried(
    tmp_path: Path, kind: str, untested: list[str], test: object
) -> None:
    tests, found = fault_tests(plan_for(kind, tmp_path, 1))

    assert untested == [gap.name for gap in found.untested if gap.name == "power loss"]
    assert test is None or test in tests
    assert try_restarts in tests
    assert ("power loss" in {gap.name for gap in found.spared}) == (kind == "unshared")


def test_a_storage_whose_writes_are_not_recorded_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs_conformance.crashes.power_loss.record_process", lambda *_: ([], []))

    found = try_power_loss(plan_for("unsynced, with its folder", tmp_path, 0), 0.0)

    assert isinstance(found, Findings)
    assert ["power loss"] == [gap.name for gap in found.untested]
