"""Values of the model survive encoding and decoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.model.job import (
    ActiveRun,
    Error,
    Job,
    JobData,
    Origin,
    Outcome,
    OutcomeRetention,
    Slot,
    Successor,
)
from dibs.storage.redis.codec.data import decode_retention, encode_retention
from dibs.storage.redis.codec.slots import decode_slot, encode_slot
from dibs_conformance.strategies import DATA, ERRORS, RETENTIONS

numbers = st.integers(0, 2**53)
counts = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
keys = st.none() | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=9
)
memos = st.none() | st.binary(min_size=1, max_size=40)
datas = st.builds(replace, st.sampled_from(DATA), key=keys)
datas_with_memo = st.builds(replace, datas, memo=memos)
attributes = st.dictionaries(texts, st.binary(max_size=40), max_size=3)
errors = st.none() | st.sampled_from([Error(type="E", message=e.message[:100]) for e in ERRORS])
origins = st.none() | st.builds(
    Origin, queue=texts, id=texts, revision=numbers, fence=numbers, attempts=counts, retries=counts,
    stalls=counts, timeouts=counts, enqueued_at=numbers, error=st.sampled_from(ERRORS), run_at=numbers,
    attributes=st.dictionaries(texts, st.binary(max_size=40), max_size=3),
)  # fmt: skip
runs = st.none() | st.builds(
    ActiveRun, fence=numbers, lease=st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    holder=texts, claimed_at=numbers, progress=st.none() | st.binary(), cancel_requested=st.booleans(),
)  # fmt: skip
jobs = st.builds(
    Job, id=st.just("a"), data=datas_with_memo, run_at=numbers, enqueued_at=numbers, seq=numbers,
    first=numbers, revision=numbers, enqueues=counts, attempts=counts, retries=counts, stalls=counts,
    timeouts=counts, error=errors, origin=origins, run=runs,
)  # fmt: skip
successors = st.builds(
    Successor, data=datas, replaces=st.booleans(), run_at=numbers, lo=st.none() | numbers,
    hi=st.none() | numbers, resets=st.booleans(), enqueued_at=numbers, seq=numbers, first=numbers,
    revision=numbers, enqueues=counts, creates=st.booleans(),
)  # fmt: skip


@given(jobs, st.none() | successors, st.lists(st.tuples(numbers, numbers), max_size=8))
def test_a_slot_survives(job: Job, blocked: Successor | None, dropped: list[tuple[int, int]]) -> None:
    slot = Slot(job, blocked, None, tuple(dropped))

    parts = [part or None for part in encode_slot(slot)]

    assert slot == decode_slot("a", parts, 0)


@given(st.builds(
    Outcome, kind=st.sampled_from(["completed", "failed", "cancelled"]), fence=numbers, first=numbers,
    revision=numbers, ended_at=numbers, expires_at=st.none() | st.integers(1, 2**53),
    result=st.none() | st.binary(), error=errors, enqueues=counts, enqueued_at=numbers, run_at=numbers,
    claimed_at=numbers, holder=texts, attempts=counts, retries=counts, stalls=counts, timeouts=counts,
    data=st.none() | datas_with_memo, origin=origins, attributes=attributes,
))  # fmt: skip
def test_an_outcome_survives(outcome: Outcome) -> None:
    slot = Slot(None, None, outcome)

    assert slot == decode_slot("a", [part or None for part in encode_slot(slot)], 0)


def test_an_outcome_of_a_job_that_never_ran_survives() -> None:
    slot = Slot(
        None, None, Outcome(kind="cancelled", fence=0, first=1, revision=2, ended_at=3, expires_at=None)
    )

    assert slot == decode_slot("a", [part or None for part in encode_slot(slot)], 0)


def test_retentions_survive() -> None:
    kept = [retention or OutcomeRetention() for retention in RETENTIONS]

    assert kept == [decode_retention(encode_retention(retention)) for retention in kept]


def test_a_plain_job_is_small() -> None:
    """The bytes of a waiting job, apart from its payload; see docs/explanation/redis-storage.md."""
    assert (
        1
        == len(
            encode_slot(
                Slot(Job(id="a", data=JobData(), run_at=1, enqueued_at=1, seq=1, first=1, revision=1))
            )[0]
        )
        - 63
    )
