"""Settings of jobs and queues become requests and patches; invalid settings are refused by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET

from dibs import Fixed, Refused, Reject, Retention, Update
from dibs.client.options.job_settings import JOB_SETTINGS, build_request, check_setting_names
from dibs.client.options.queue_settings import build_patch
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
