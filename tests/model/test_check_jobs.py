"""Every limit of contract 4, reached and exceeded by one. A refusal names field, limit and remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace as changed

from dibs.errors import BatchRefused, Refused
from dibs.model import check_jobs, check_values, limits
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, FollowUp, Reject, Update
from dibs.model.retry import Exponential, Fixed

KIB, MIB = 1024, 1024 * 1024


def refusal(check: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        check()
    return caught.value


def check(job: NewJob) -> None:
    check_jobs.check_new_job(job)


def job(**data: Any) -> NewJob:
    return NewJob(id="a", data=JobData(**data))


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


AT_THE_LIMIT = {
    "id of 1 byte": NewJob(id="x"),
    "id of 512 bytes": NewJob(id="x" * 512),
    "id of 512 bytes in 256 characters": NewJob(id="é" * 256),
    "payload of 1 MiB": job(payload=bytes(MIB)),
    "attributes of 64 KiB, names included": job(attributes={"ab": b'"' + b"x" * (64 * KIB - 4) + b'"'}),
    "highest priority": job(priority=1000),
    "lowest priority": job(priority=-1000),
    "JSON of depth 64": job(attributes={"a": nested(64)}),
    "integer of 2**53": job(attributes={"a": str(2**53).encode()}),
    "integer of -2**53": job(attributes={"a": str(-(2**53)).encode()}),
    "run_at at the end of the year 9998": NewJob(id="a", run_at=253_370_764_799_999),
    "run_at 0": NewJob(id="a", run_at=0),
    "delay 0": NewJob(id="a", delay=0),
    "delay of 100,000 days": NewJob(id="a", delay=8_640_000_000_000),
    "an ESC and a newline in an id": NewJob(id="../\n\x1b[31m"),
    "the least overrides": job(overrides=Overrides(timeout=1, max_retries=0, max_stalls=0, lease=1)),
    "overrides without limits": job(overrides=Overrides(timeout=None, max_retries=None, max_timeouts=None)),
    "a backoff of nothing": job(overrides=Overrides(backoff=Exponential(0, 0))),
    "key of 128 bytes": job(key="é" * 64),
    "a deadline for the start": job(overrides=Overrides(start_by=0)),
    "no deadline for the start": job(overrides=Overrides(start_by=None)),
    "retention of nothing and for ever": job(retention=OutcomeRetention(completed=0, failed=None)),
    "retention of 100,000 days": job(
        retention=OutcomeRetention(cancelled=8_640_000_000_000, keep_payload=())
    ),
}

OVER_THE_LIMIT: dict[str, tuple[NewJob, str, str]] = {
    "no id": (NewJob(id=""), "id", "1 to 512"),
    "id of 513 bytes": (NewJob(id="x" * 513), "id", "1 to 512"),
    "id of 514 bytes in 257 characters": (NewJob(id="é" * 257), "id", "1 to 512"),
    "NUL in an id": (NewJob(id="a\0b"), "id", "remove it"),
    "lone surrogate in an id": (NewJob(id="\ud800"), "id", "UTF-8"),
    "an id that is no text": (NewJob(id=7), "id", "must be text"),  # type: ignore[arg-type]
    "payload of 1 MiB and 1": (job(payload=bytes(MIB + 1)), "payload", "the limit is 1048576"),
    "payload that is no bytes": (job(payload="text"), "payload", "must be bytes"),
    "payload that may change": (job(payload=bytearray(1)), "payload", "must be bytes"),
    "attributes of 64 KiB and 1": (
        job(attributes={"ab": b'"' + b"x" * (64 * KIB - 3) + b'"'}),
        "attributes",
        "the limit is 65536",
    ),
    "attributes that are no mapping": (job(attributes=[("a", b"1")]), "attributes", "must map"),
    "attributes that are None": (job(attributes=None), "attributes", "must map"),
    "a value that is text": (job(attributes={"a": '"x"'}), "attributes['a']", "must be bytes"),
    "a value that is no JSON": (job(attributes={"a": b"{"}), "attributes['a']", "not valid JSON"),
    "NaN": (job(attributes={"a": b"NaN"}), "attributes['a']", "not valid JSON"),
    "a number beyond any float": (job(attributes={"a": b"1e400"}), "attributes['a']", "not valid JSON"),
    "a number of 10,000 digits": (job(attributes={"a": b"1" * 10_000}), "attributes['a']", "not valid JSON"),
    "an escaped lone surrogate": (job(attributes={"a": rb'"\ud800"'}), "attributes['a']", "not valid JSON"),
    "an escaped NUL": (job(attributes={"a": rb'"\u0000"'}), "attributes['a']", "NUL"),
    "a NUL in a key": (job(attributes={"a": rb'{"\u0000": 1}'}), "attributes['a']", "NUL"),
    "NUL in a name": (job(attributes={"\0": b"1"}), "attributes['\\x00']", "NUL"),
    "a name that is no text": (job(attributes={1: b"1"}), "attributes[1]", "must be text"),
    "JSON of depth 65": (job(attributes={"a": nested(65)}), "attributes['a']", "deeper than 64"),
    "JSON of depth 30,000": (job(attributes={"a": nested(30_000)}), "attributes['a']", ""),
    "integer beyond 2**53": (job(attributes={"a": str(2**53 + 1).encode()}), "attributes['a']", "as text"),
    "priority 1001": (job(priority=1001), "priority", "-1000 to 1000"),
    "priority -1001": (job(priority=-1001), "priority", "-1000 to 1000"),
    "priority of 10,000 digits": (job(priority=10**10_000), "priority", "-1000 to 1000"),
    "half a priority": (job(priority=0.5), "priority", "whole number"),
    "a priority that is NaN": (job(priority=float("nan")), "priority", "whole number"),
    "a priority that is True": (job(priority=True), "priority", "whole number"),
    "a priority that is None": (job(priority=None), "priority", "whole number"),
    "run_at before time began": (NewJob(id="a", run_at=-1), "run_at", "0 to 253370764799999"),
    "run_at in the year 9999": (
        NewJob(id="a", run_at=253_370_764_800_000),
        "run_at",
        "the end of the year 9998",
    ),
    "run_at in float seconds": (NewJob(id="a", run_at=1.5), "run_at", "whole number"),  # type: ignore[arg-type]
    "negative delay": (NewJob(id="a", delay=-1), "delay", "0 to 8640000000000 ms"),
    "delay above 100,000 days": (NewJob(id="a", delay=8_640_000_000_001), "delay", "(100,000 days)"),
    "run_at and delay": (NewJob(id="a", run_at=1, delay=1), "run_at", "set at most one"),
    "a timeout of nothing": (job(overrides=Overrides(timeout=0)), "timeout", "1 to"),
    "a timeout that is True": (job(overrides=Overrides(timeout=True)), "timeout", "whole number"),
    "-1 retries": (job(overrides=Overrides(max_retries=-1)), "max_retries", "0 to"),
    "-1 timeouts": (job(overrides=Overrides(max_timeouts=-1)), "max_timeouts", "0 to"),
    "-1 stalls": (job(overrides=Overrides(max_stalls=-1)), "max_stalls", "0 to"),
    "a key of nothing": (job(key=""), "key", "1 to 128"),
    "a key of 129 bytes": (job(key="é" * 64 + "k"), "key", "1 to 128"),
    "a key that is no text": (job(key=b"k"), "key", "must be text"),
    "NUL in a key of a job": (job(key="a\0b"), "key", "remove it"),
    "a memo": (job(memo=b"m"), "memo", "report"),
    "a deadline before time began": (job(overrides=Overrides(start_by=-1)), "start_by", "0 to"),
    "a lease of nothing": (job(overrides=Overrides(lease=0)), "lease", "1 to"),
    "a lease of None": (job(overrides=changed(Overrides(), lease=None)), "lease", ""),
    "a backoff that is a number": (
        job(overrides=changed(Overrides(), backoff=2)),
        "backoff",
        "Immediate(), Fixed(seconds) or Exponential(first, cap), not int",
    ),
    "a backoff into the past": (
        job(overrides=Overrides(backoff=Fixed(-1))),
        "backoff.seconds",
        "0 to",
    ),
    "a backoff of NaN": (
        job(overrides=Overrides(backoff=Fixed(float("nan")))),
        "backoff.seconds",
        "",
    ),
    "a backoff for ever": (
        job(overrides=Overrides(backoff=Exponential(2, float("inf")))),
        "backoff.cap",
        "0 to",
    ),
    "overrides that are a dict": (job(overrides={"timeout": 5}), "overrides", "Overrides"),
    "negative retention": (job(retention=OutcomeRetention(failed=-1)), "retention.failed", "0 to"),
    "retention that is False": (
        job(retention=OutcomeRetention(completed=False)),
        "retention.completed",
        "whole number",
    ),
    "an end nobody knows": (
        job(retention=changed(OutcomeRetention(), keep_payload=("lost",))),
        "retention.keep_payload",
        "completed, failed, cancelled",
    ),
    "retention that is a number": (job(retention=3600), "retention", "Retention"),
}


@pytest.mark.parametrize("new", AT_THE_LIMIT.values(), ids=AT_THE_LIMIT)
def test_at_the_limit_it_is_taken(new: NewJob) -> None:
    check(new)


@pytest.mark.parametrize(("new", "field", "says"), OVER_THE_LIMIT.values(), ids=OVER_THE_LIMIT)
def test_over_the_limit_it_is_refused(new: NewJob, field: str, says: str) -> None:
    """The refusal names the field, and the limit or the remedy."""
    refused = refusal(lambda: check(new))

    assert field == refused.field
    assert says in str(refused)
    assert field.partition("[")[0] in str(refused)


def test_a_queue_of_500_bytes_is_taken_and_so_is_its_fail_queue() -> None:
    """Every queue that takes jobs can have a fail queue, also one with the longest name."""
    check_jobs.check_enqueue_queue("q" * 500)
    check_jobs.check_queue("q" * 500 + "!fail")

    assert "queue" == refusal(lambda: check_jobs.check_queue("q" * 501 + "!fail")).field


def test_an_enqueue_to_a_fail_queue_is_refused() -> None:
    refused = refusal(lambda: check_jobs.check_enqueue_queue("mail!fail"))

    assert "queue" == refused.field
    assert "only dibs enqueues there" in str(refused)


def test_a_follow_up_meets_the_same_limits() -> None:
    bad = (FollowUp(queue="q", job=NewJob(id="a")), FollowUp(queue="q", job=NewJob(id="")))

    assert "id" == refusal(lambda: check_jobs.check_follow_ups(bad)).field
    assert (
        "queue"
        == refusal(lambda: check_jobs.check_follow_ups((FollowUp(queue="q!fail", job=NewJob(id="a")),))).field
    )


def request(id: str = "a", **rest: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id), **rest)


def test_a_batch_of_1000_is_taken_and_one_of_1001_refused() -> None:
    check_jobs.check_batch([request()] * 1000)
    refused = refusal(lambda: check_jobs.check_batch([request()] * 1001))

    assert "requests" == refused.field
    assert "the limit is 1000, send several batches" in str(refused)


def test_a_bad_batch_names_each_bad_item_by_its_index() -> None:
    with pytest.raises(BatchRefused) as caught:
        check_jobs.check_batch([request(), request(""), request(), request(request_key="k" * 129)])

    refused = [e for e in caught.value.exceptions if isinstance(e, Refused)]

    assert [(1, "id"), (3, "request_key")] == [(e.index, e.field) for e in refused]
    assert "2 of 4" in str(caught.value)


def test_a_request_key_of_128_bytes_is_taken() -> None:
    check_jobs.check_batch([request(request_key="k" * 128), request(request_key=None)])


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
