"""Storages that choose at random where the contract allows it, as Redis does in a reap."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from dibs.model import transitions
from dibs.model.results import ClaimResult
from dibs_conformance.lockstep import Issued
from dibs_conformance.sequential import levels
from tests.kit.play import play

#: Enough examples for Hypothesis to replay the beginning of one, from any seed that was tried.
ENOUGH = 25


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Make the issued numbers differ in each replay.

    Return the errors that Hypothesis raises because of it.
    """
    chance, add_claim, flaky_errors = Random(1), Issued.add_claim, list[Exception]()

    def sometimes(self: Issued, queue: str, claim: ClaimResult) -> None:
        if chance.random() < 0.5:
            add_claim(self, queue, claim)

    def listening(*args: object, **words: object) -> None:
        try:
            run_state_machine_as_test(*args, **words)  # type: ignore[arg-type]
        except Flaky as error:
            flaky_errors.append(error)
            raise

    monkeypatch.setattr(Issued, "add_claim", sometimes)
    monkeypatch.setattr(levels, "run_state_machine_as_test", listening)
    return flaky_errors


def test_a_different_choice_in_a_replay_is_no_failure(flaky: list[Exception]) -> None:
    """If such a replay ends a chunk of examples early, the rest of its examples runs in another chunk."""
    failure, session = play(ENOUGH)

    assert failure is None, failure
    assert flaky
    assert session.examples >= ENOUGH


def test_a_failure_is_reported_even_if_the_replay_passes(
    flaky: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other request to cancel is lost, so a replay may not fail again."""
    chance, real = Random(2), transitions.request_cancel
    monkeypatch.setattr(
        transitions,
        "request_cancel",
        lambda slot, *rest: slot if chance.random() < 0.5 else real(slot, *rest),
    )

    failure, _ = play(10 * ENOUGH, shrink=True)

    assert failure is not None
    assert "Flaky" not in failure.law
    assert flaky
    assert any(line.startswith("cancel(") or "supersede" in line for line in failure.story)
