"""Restarts, compactions and long histories at L0: the planted bugs that only they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs_conformance.lockstep import Interruptions, interruption_kinds
from tests.kit.mutants import MUTANTS, Mutant, durability
from tests.kit.play import play

PLANTED = [one for one in MUTANTS.values() if one.plant.__module__ == durability.__name__]


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda one: one.name)
def test_the_fixed_histories_find_a_bug_of_a_restart(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.plant(monkeypatch)

    failure, _ = play(0, target=f"file:{tmp_path}", durable=True, walkthrough=True)

    assert failure is not None


def test_the_file_storage_survives_restarts_and_checkpoints(tmp_path: Path) -> None:
    failure, _ = play(5, target=f"file:{tmp_path}", durable=True, walkthrough=True)

    assert failure is None


def test_only_claimed_abilities_are_interrupted() -> None:
    assert interruption_kinds(durable=False, compacts=False) == ()
    assert interruption_kinds(durable=True, compacts=False) == ("restart",)
    assert interruption_kinds(durable=False, compacts=True) == ("compact",)


def test_a_plan_of_interruptions_is_the_same_again() -> None:
    kinds = interruption_kinds(durable=True, compacts=True)
    one, other = Interruptions(kinds, 4), Interruptions(kinds, 4)
    drawn = [one.next() for _ in range(200)]

    assert drawn == [other.next() for _ in range(200)]
    assert {"restart", "compact", None} == set(drawn)
