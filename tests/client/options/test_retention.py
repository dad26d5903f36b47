"""Retentions become ms, and a wait extends the retention of the outcome that it waits for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dibs import Retention
from dibs.client.options.job_settings import WAIT_SLACK_MS, build_retention, extend_retention
from dibs.model import job as model

HOUR = 3_600_000


def test_seconds_and_none_apply_to_every_kind_of_end() -> None:
    assert build_retention(5) == model.OutcomeRetention(completed=5000, failed=5000, cancelled=5000)
    assert build_retention(None) == model.OutcomeRetention(completed=None, failed=None, cancelled=None)


def test_a_missing_age_is_left_to_the_queue() -> None:
    kept = build_retention(Retention(failed=timedelta(days=1), keep_payload=("failed",)))

    assert kept == model.OutcomeRetention(failed=24 * HOUR, keep_payload=("failed",))


@pytest.mark.parametrize(
    ("own", "queue", "wait", "expected"),
    [
        ({}, {}, 10_000, {}),
        ({}, {"completed": 0}, 10_000, {"completed": 10_000 + WAIT_SLACK_MS}),
        ({"completed": 1}, {}, 0, {"completed": WAIT_SLACK_MS}),
        ({"completed": None}, {}, HOUR, {"completed": None, "cancelled": HOUR + WAIT_SLACK_MS}),
        ({"failed": 5, "keep_payload": ()}, {}, 1, {"failed": 1 + WAIT_SLACK_MS, "keep_payload": ()}),
        (
            {},
            {"completed": None, "failed": 1, "cancelled": 99 * HOUR},
            HOUR,
            {"failed": HOUR + WAIT_SLACK_MS},
        ),
    ],
    ids=["long enough", "queue keeps less", "job keeps less", "for ever", "payload", "never lowered"],
)
def test_a_wait_extends_the_ages_that_would_end_before_it(
    own: Any, queue: Any, wait: int, expected: Any
) -> None:
    longer = extend_retention(model.OutcomeRetention(**queue), wait, model.OutcomeRetention(**own))

    assert longer == model.OutcomeRetention(**expected)


def test_the_retentions_of_successor_and_outcome_are_not_shortened() -> None:
    """An amend sets one retention on current, successor and outcome (contract 3, amend)."""
    successor = model.OutcomeRetention(completed=None, keep_payload=("completed",))
    outcome = model.OutcomeRetention(cancelled=9 * HOUR)

    longer = extend_retention(
        model.OutcomeRetention(), 0, model.OutcomeRetention(completed=1, failed=HOUR), successor, outcome
    )

    assert longer == model.OutcomeRetention(
        completed=None, failed=7 * 24 * HOUR, cancelled=9 * HOUR, keep_payload=("completed", "failed")
    )


def test_a_long_enough_retention_stays_the_same_object() -> None:
    own = model.OutcomeRetention(completed=HOUR)

    assert extend_retention(model.OutcomeRetention(), 0, own, model.OutcomeRetention(completed=None)) is own
