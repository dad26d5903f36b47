"""The search for an order of the calls on one id: it explains each correct history, and few tampered ones."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from dibs_conformance.history import RecordedStep
from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.linearize import find_contradiction
from dibs_conformance.order_search import UndecidedOrder
from tests.kit.history.histories import make_history
from tests.kit.history.tampering import tamper


def explained(steps: list[RecordedStep]) -> Iterator[bool | None]:
    """Yield for each id of the main queue whether an order explains its answers; None if undecided."""
    history = RecordedHistory.from_steps(steps)
    for (queue, _), id_steps in history.ids.items():
        if queue == "q":
            try:
                yield find_contradiction(history, id_steps) is None
            except UndecidedOrder:
                yield None


def test_each_correct_history_has_an_order() -> None:
    """The model of one id agrees with the storage. Calls without an answer leave nothing undecided."""
    found = {one for seed in range(300) for one in explained(make_history(seed, 20))}

    assert {True} == found


def count_rejected(seeds: range) -> int:
    return sum(False in explained(tamper(make_history(seed, 14), Random(seed))) for seed in seeds)


def test_most_wrong_answers_have_no_order() -> None:
    """Some of the tampered answers are possible: for example a job without its last claim."""
    assert count_rejected(range(300)) > 0.7 * 300


@pytest.mark.certify
def test_most_wrong_answers_have_no_order_in_the_long_form() -> None:
    assert count_rejected(range(10_000, 50_000)) > 0.7 * 40_000
