"""Storages that choose by chance where the contract leaves them the choice, as Redis does in a reap."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from dibs.model import transitions
from dibs.model.results import ClaimResult
from dibs_conformance.sequential import examples
from dibs_conformance.sequential.session import Issued
from tests.kit.play import play

#: So many that Hypothesis plays the beginning of one again, from any seed that was tried.
ENOUGH = 25


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Let what is at hand differ each time an example is played; gathers what Hypothesis says of it."""
    chance, add_claim, said = Random(1), Issued.add_claim, list[Exception]()

    def sometimes(self: Issued, queue: str, claim: ClaimResult) -> None:
        if chance.random() < 0.5:
            add_claim(self, queue, claim)

    def listening(*args: object, **words: object) -> None:
        try:
            run_state_machine_as_test(*args, **words)  # type: ignore[arg-type]
        except Flaky as error:
            said.append(error)
            raise

    monkeypatch.setattr(Issued, "add_claim", sometimes)
    monkeypatch.setattr(examples, "run_state_machine_as_test", listening)
    return said


def test_a_choice_that_falls_otherwise_is_no_failure(flaky: list[Exception]) -> None:
    """What is left of a chunk that ended early is played in another."""
    failure, session = play(ENOUGH)

    assert failure is None, failure
    assert flaky
    assert session.examples >= ENOUGH


def test_what_broke_is_told_although_it_may_not_break_again(
    flaky: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other request to cancel is forgotten: what makes the story shorter may not find it again."""
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
    assert any(line.startswith("cancel(") for line in failure.story)
