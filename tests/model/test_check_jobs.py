"""Checks of jobs: JSON that breaks parsers, limits of other storages, and the short check of plain requests.

The kit tries each limit at its value and beyond: bad_input.py and bad_calls.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import BatchRefused, Refused
from dibs.model import check_jobs, check_values, limits
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, Reject, Update

KIB, MIB = 1024, 1024 * 1024


def refusal(check: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        check()
    return caught.value


def job(**data: Any) -> NewJob:
    return NewJob(id="a", data=JobData(**data))


@pytest.mark.parametrize("value", [b"1e400", b"1" * 10_000, b'{"\\u0000": 1}', b"[" * 30_000 + b"]" * 30_000])
def test_json_that_breaks_parsers_is_refused(value: bytes) -> None:
    assert "attributes['a']" == refusal(lambda: check_jobs.check_new_job(job(attributes={"a": value}))).field


def test_a_queue_of_500_bytes_is_taken_and_so_is_its_fail_queue() -> None:
    """Every queue that takes jobs can have a fail queue, also one with the longest name."""
    check_jobs.check_enqueue_queue("q" * 500)
    check_jobs.check_queue("q" * 500 + "!fail")

    assert "queue" == refusal(lambda: check_jobs.check_queue("q" * 501 + "!fail")).field


def request(id: str = "a", **rest: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id), **rest)


def test_a_refusal_names_the_limits_of_the_storage() -> None:
    small = limits.Limits(payload=3, depth=2, attributes=20)

    assert "limit is 3" in str(refusal(lambda: check_jobs.check_new_job(job(payload=b"1234"), small)))
    assert "deeper than 2" in str(
        refusal(lambda: check_jobs.check_new_job(job(attributes={"a": b"[[[]]]"}), small))
    )


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {"a": [float("-inf")]}, "a\0", {"\0": 1}, ["\udfff"], {"\udfff": 1}]
)
def test_a_value_that_json_cannot_encode_is_refused(value: object) -> None:
    assert "data" == refusal(lambda: check_values.check_json_value("data", value)).field


def test_a_checked_batch_is_checked_again_only_for_other_limits() -> None:
    checked = check_jobs.check_batch([request(), request()])

    assert check_jobs.check_batch(checked) is checked
    with pytest.raises(BatchRefused):
        check_jobs.check_batch(checked, limits.Limits(id=0))


def test_a_batch_knows_whether_all_of_it_is_plain() -> None:
    job = NewJob(id="a")

    assert check_jobs.check_batch([EnqueueRequest(job=job), EnqueueRequest(job=job)]).plain
    for other in (
        EnqueueRequest(job=job, want_outcome=True),
        EnqueueRequest(job=job, request_key="k"),
        EnqueueRequest(job=job, on_conflict=Reject()),
        EnqueueRequest(job=NewJob(id="a", delay=1)),
        EnqueueRequest(job=NewJob(id="a", data=JobData(priority=1))),
        EnqueueRequest(job=NewJob(id="a", data=JobData(key="k"))),
        EnqueueRequest(job=NewJob(id="a", data=JobData(attributes={"a": b"1"}))),
    ):
        assert not check_jobs.check_batch([EnqueueRequest(job=job), other]).plain


#: Values for each field of a request: the default, a good one, and bad ones.
VALUES: dict[str, tuple[Any, ...]] = {
    "id": ("a", "x" * 512, "x" * 513, "", "ä" * 300, "\0", "\ud800", 5),
    "payload": (b"", b"x" * MIB, b"x" * (MIB + 1), "text", None),
    "attributes": ({}, {"a": b"1"}, {"a": "no bytes"}),
    "priority": (0, 1, 2000, 0.0, True, None),
    "overrides": (None, Overrides(timeout=0), Overrides(max_retries=1)),
    "retention": (None, OutcomeRetention(completed=-1)),
    "key": (None, "k", ""),
    "memo": (None, b"m"),
    "run_at": (None, -1, 5),
    "delay": (None, -1, 5),
    "on_conflict": (DEFAULT_UPDATE, Update(), Reject(), None),
    "request_key": (None, "", "k"),
    "want_outcome": (False, True, None),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in VALUES for value in VALUES[field]])
def test_a_request_that_passes_as_plain_passes_the_full_check(field: str, value: Any) -> None:
    """`check_request` skips the full check for plain requests."""
    values = {name: choices[0] for name, choices in VALUES.items()} | {field: value}
    data = JobData(**{name: values[name] for name in JobData.__struct_fields__})
    asked = EnqueueRequest(
        job=NewJob(id=values["id"], data=data, run_at=values["run_at"], delay=values["delay"]),
        **{name: values[name] for name in ("on_conflict", "request_key", "want_outcome")},
    )

    plain = check_jobs._sets_only_id_and_payload(asked, limits.LIMITS)
    if plain:
        check_jobs.check_new_job(asked.job, limits.LIMITS)
        check_jobs.check_conflict(asked.on_conflict, asked.job)

    assert plain or value is not VALUES[field][0]
