"""Settings of jobs and queues become requests and patches; invalid settings are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET

from dibs import Fixed, Refused, Reject, Retention, Update
from dibs.client.options import arguments
from dibs.client.options.arguments import content_id, new_id
from dibs.client.options.job_settings import (
    JOB_SETTINGS,
    WAIT_SLACK_MS,
    build_request,
    build_retention,
    check_setting_names,
    extend_retention,
)
from dibs.client.options.queue_settings import build_patch
from dibs.model import job as model
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import EnqueueRequest, SettingsPatch


def test_every_setting_arrives_in_the_request() -> None:
    made = build_request(
        b"1",
        {
            "id": "a",
            "run_at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
            "priority": 7,
            "on_conflict": Reject(),
            "request_key": "once",
            "attributes": {"customer": 5},
            "retention": Retention(completed=60),
            "timeout": 1.5,
            "max_retries": None,
            "max_timeouts": 0,
            "max_stalls": 1,
            "backoff": Fixed(2),
            "lease": timedelta(minutes=1),
        },
    )

    assert made == EnqueueRequest(
        job=NewJob(
            id="a",
            run_at=5000,
            data=JobData(
                payload=b"1",
                attributes={"customer": b"5"},
                priority=7,
                retention=OutcomeRetention(completed=60_000),
                overrides=Overrides(
                    timeout=1500,
                    max_retries=None,
                    max_timeouts=0,
                    max_stalls=1,
                    backoff=Fixed(2),
                    lease=60_000,
                ),
            ),
        ),
        on_conflict=Reject(),
        request_key="once",
    )


def test_a_request_without_settings_has_the_defaults_and_a_new_id() -> None:
    made = build_request(b"", {})

    assert made.job.data == JobData()
    assert (made.job.run_at, made.job.delay) == (None, None)
    assert made.job.id != build_request(b"", {}).job.id


def test_an_unknown_setting_is_refused_with_a_list_of_the_settings() -> None:
    with pytest.raises(Refused, match=r"'prio'.*priority"):
        check_setting_names({"prio": 1}, JOB_SETTINGS)


def test_a_patch_of_queue_settings_is_in_ms() -> None:
    patch = build_patch(
        {"max_active": None, "log_age": 2, "retention": Retention(failed=None), "log_level": "all"}
    )

    assert patch == SettingsPatch(
        max_active=None, log_age=2000, retention=OutcomeRetention(failed=None), log_level="all", paused=UNSET
    )
    with pytest.raises(Refused):
        build_patch({"max_activ": 1})  # type: ignore[typeddict-unknown-key]


def test_only_a_reject_asks_for_an_earlier_outcome() -> None:
    rules: list[Any] = [{}, {"id": "a"}, {"on_conflict": Update()}, {"on_conflict": Reject()}]
    wants = [build_request(b"1", rule, want_outcome=True).want_outcome for rule in rules]

    assert [False, False, False, True] == wants
    assert build_request(b"1", {"on_conflict": Reject()}).want_outcome is False


# -- Retentions become ms, and a wait extends the retention of the outcome that it waits for ---------


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


# -- Generated ids sort by time; content ids are equal for equal data --------------------------------


def test_generated_ids_grow() -> None:
    made = [new_id() for _ in range(20_000)]

    assert sorted(set(made)) == made


def test_a_burst_borrows_from_the_next_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.client.options.arguments.time.time_ns", lambda: 5_000_000_000)
    generator = arguments.IdGenerator()

    made = [generator.next() for _ in range(2 * arguments.MAX_IDS_PER_MS + 1)]

    assert sorted(set(made)) == made
    most = arguments.MAX_IDS_PER_MS
    assert [most, most, 1] == [*Counter(id[:10] for id in made).values()]


def test_generated_ids_grow_while_the_clock_stands_or_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = arguments.IdGenerator()
    times = iter([5_000_000_000, 5_000_000_000, 4_000_000_000, 6_000_000_000])
    monkeypatch.setattr("dibs.client.options.arguments.time.time_ns", lambda: next(times))

    made = [generator.next() for _ in range(4)]

    assert sorted(made) == made


def test_generated_ids_are_ulids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ULID has 26 characters; the first ten encode ms since 1970 (example of the ULID specification)."""
    monkeypatch.setattr("dibs.client.options.arguments.time.time_ns", lambda: 1_469_918_176_385 * 10**6)

    made = arguments.IdGenerator().next()

    assert made.startswith("01ARYZ6S41")
    assert len(made) == 26
    assert set(made) <= {*arguments.BASE32_DIGITS}


def test_threads_never_get_the_same_id() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_id(), range(4_000)))

    assert len(set(made)) == len(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork does not exist on this platform")
def test_a_forked_process_draws_its_own_random_bits() -> None:
    """Parent and child generate an id in the same ms. A new process forks: pytest has other threads."""
    code = (
        "import os, time; time.time_ns = lambda: 5 * 10**9;"
        "from dibs.client.options.arguments import new_id; new_id(); child = os.fork();"
        "os.write(1, new_id()[12:].encode() + b' '); child and os.wait()"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert 2 == len(set(output.split()))


def test_equal_data_has_one_content_id() -> None:
    assert content_id({"a": 1, "b": [2]}) == content_id({"b": [2], "a": 1})
    assert content_id({"a": 1}) != content_id({"a": 2})
