"""How long an outcome is kept, as people write it, and how a wait raises it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dibs import Refused, Retention
from dibs.client.options.retention import SLACK, build_retention, extend_retention
from dibs.model import job as model

HOUR = 3_600_000


def test_seconds_count_for_every_kind_of_end() -> None:
    assert build_retention(5) == model.OutcomeRetention(completed=5000, failed=5000, cancelled=5000)
    assert build_retention(None) == model.OutcomeRetention(completed=None, failed=None, cancelled=None)


def test_what_is_not_said_is_left_to_the_queue() -> None:
    kept = build_retention(Retention(failed=timedelta(days=1), keep_payload=("failed",)))

    assert kept == model.OutcomeRetention(failed=24 * HOUR, keep_payload=("failed",))


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(Refused):
        build_retention(-1)


@pytest.mark.parametrize(
    ("own", "queue", "wait", "expected"),
    [
        ({}, {}, 10_000, {}),
        ({}, {"completed": 0}, 10_000, {"completed": 10_000 + SLACK}),
        ({"completed": 1}, {}, 0, {"completed": SLACK}),
        ({"completed": None}, {}, HOUR, {"completed": None, "cancelled": HOUR + SLACK}),
        ({"failed": 5, "keep_payload": ()}, {}, 1, {"failed": 1 + SLACK, "keep_payload": ()}),
        ({}, {"completed": None, "failed": 1, "cancelled": 99 * HOUR}, HOUR, {"failed": HOUR + SLACK}),
    ],
    ids=["long enough", "queue keeps less", "job keeps less", "for ever", "payload", "never lowered"],
)
def test_a_wait_raises_what_would_end_before_it(own: Any, queue: Any, wait: int, expected: Any) -> None:
    longer = extend_retention(model.OutcomeRetention(**queue), wait, model.OutcomeRetention(**own))

    assert longer == model.OutcomeRetention(**expected)


def test_what_else_there_is_of_the_id_is_never_cut() -> None:
    """An amend writes one retention to current, successor and outcome (contract 3, amend)."""
    successor = model.OutcomeRetention(completed=None, keep_payload=("completed",))
    outcome = model.OutcomeRetention(cancelled=9 * HOUR)

    longer = extend_retention(
        model.OutcomeRetention(), 0, model.OutcomeRetention(completed=1, failed=HOUR), successor, outcome
    )

    assert longer == model.OutcomeRetention(
        completed=None, failed=7 * 24 * HOUR, cancelled=9 * HOUR, keep_payload=("completed", "failed")
    )


def test_what_is_long_enough_is_left_alone_whatever_else_there_is() -> None:
    own = model.OutcomeRetention(completed=HOUR)

    assert extend_retention(model.OutcomeRetention(), 0, own, model.OutcomeRetention(completed=None)) is own
