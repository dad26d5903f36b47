"""The ends and returns of runs: memo, attributes, results in the log, fail jobs, and releases with a time."""

from __future__ import annotations

import pytest

from dibs.errors import Refused
from dibs.model.job import NO_DATA, Error, Job, JobData, NewJob, OutcomeRetention, Slot
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import EnqueueResult, ExportRecord
from dibs.storage.indexed import by_id, claiming, enqueueing, settling, whole_queue
from dibs.storage.indexed.index import Index

FAIL = Fail(error=Error(type="Oops"))
UPDATE_ONLY = Update(create=False)


@pytest.fixture
def index() -> Index:
    index = Index()
    index.now = 1000
    claiming.grant(index, ["q"], "l", 100, "h")
    return index


def put(
    index: Index, rule: Update | None = None, request_key: str | None = None, **job: object
) -> EnqueueResult:
    new = NewJob(id="a", **{"data": JobData(attributes={"k": b"1"}), **job})  # type: ignore[arg-type]
    request = EnqueueRequest(job=new, on_conflict=rule or Update(), request_key=request_key)
    return enqueueing.enqueue(index, "q", [request])[0]


def claim(index: Index) -> Job:
    [job] = claiming.claim(index, "q", "l", 1).jobs
    return job


def settle(index: Index, action: SettleAction) -> str:
    job = slot(index).current
    assert job is not None
    assert job.run is not None
    return settling.settle(index, "q", [Settlement(id="a", fence=job.run.fence, action=action)], LIMITS)[
        0
    ].status


def report(index: Index, memo: bytes, fence: int | None = None) -> str:
    job = slot(index).current
    fence = fence if fence is not None or job is None or job.run is None else job.run.fence
    return settling.report(index, "q", "a", fence or 0, None, memo)


def slot(index: Index) -> Slot:
    return index.find_queue("q").slots.get("a", Slot())


def memo(index: Index) -> bytes | None:
    job = slot(index).current
    assert job is not None
    return job.data.memo


def with_memo(index: Index) -> Job:
    put(index)
    job = claim(index)
    assert "reported" == report(index, b"page 7")
    return job


@pytest.mark.parametrize("action", [RetryLater(), Release(), Release(delay=0), HandOff()])
def test_a_memo_stays_over_each_return_and_a_hand_off(index: Index, action: SettleAction) -> None:
    with_memo(index)
    settle(index, action)
    by_id.amend(index, "q", "a", JobPatch(attributes={"n": b"2"}), LIMITS)

    assert b"page 7" == memo(index)


def test_a_memo_stays_over_a_reap_and_goes_with_an_empty_one(index: Index) -> None:
    job = with_memo(index)
    index.now = 2000
    claiming.reap(index, "q", 9)
    assert job.run is not None
    assert "lost" == report(index, b"late", job.run.fence)
    assert b"page 7" == memo(index)
    claiming.grant(index, ["q"], "l", 100, "h")
    assert b"page 7" == claim(index).data.memo
    assert "reported" == report(index, b"")

    assert memo(index) is None


def test_an_update_of_the_data_drops_the_memo_and_another_keeps_it(index: Index) -> None:
    with_memo(index)
    settle(index, Release())
    put(index, Update(data=False))
    assert b"page 7" == memo(index)
    put(index, UPDATE_ONLY, data=NO_DATA)
    assert b"page 7" == memo(index)
    put(index)

    assert memo(index) is None


def test_only_a_failed_outcome_keeps_the_memo_and_retry_failed_brings_it_back(index: Index) -> None:
    keeps = OutcomeRetention(keep_payload=("completed", "failed", "cancelled"))
    for action in (Complete(retention=keeps), Cancelled(retention=keeps)):
        with_memo(index)
        settle(index, action)
        outcome = slot(index).outcome
        assert outcome is not None
        assert outcome.data is not None
        assert outcome.data.memo is None
    with_memo(index)
    settle(index, FAIL)
    by_id.retry_failed(index, "q", ["a"])

    assert b"page 7" == memo(index)


def test_a_memo_goes_to_no_successor_and_to_no_fail_job(index: Index) -> None:
    whole_queue.configure(index, "q", SettingsPatch(fail_handler=True))
    with_memo(index)
    put(index, Update(data=False))
    settle(index, FAIL)
    [fail] = index.find_queue("q!fail").slots.values()

    assert memo(index) is None
    assert fail.current is not None
    assert fail.current.data.memo is None


def test_an_import_keeps_memo_and_key(index: Index) -> None:
    put(index, data=JobData(key="k"))
    claim(index)
    report(index, b"page 7")
    whole_queue.import_(index, "other", [ExportRecord(id="a", slot=slot(index))])
    moved = index.find_queue("other").slots["a"].current

    assert moved is not None
    assert (None, "k", b"page 7") == (moved.run, moved.data.key, moved.data.memo)


@pytest.mark.parametrize("action", [Release(delay=50), Release(run_at=1050)])
def test_a_release_with_a_time_waits_until_then_at_the_back(index: Index, action: Release) -> None:
    put(index)
    before = claim(index)
    settle(index, action)
    after = slot(index).current

    assert after is not None
    assert (1050, 0, 0) == (after.run_at, after.attempts, after.retries)
    assert after.seq > before.seq


def test_a_release_without_a_time_keeps_its_place(index: Index) -> None:
    put(index)
    before = claim(index)
    settle(index, Release())
    after = slot(index).current

    assert after is not None
    assert (before.run_at, before.seq, 0) == (after.run_at, after.seq, after.attempts)


def test_each_end_that_begins_after_configure_obeys_fail_handler(index: Index) -> None:
    """The setting at the end decides, not the one at the claim. A repeat makes no second fail job."""
    job = with_memo(index)
    whole_queue.configure(index, "q", SettingsPatch(fail_handler=True))
    assert job.run is not None
    one = Settlement(id="a", fence=job.run.fence, action=FAIL)
    assert ["done"] * 2 == [settling.settle(index, "q", [one], LIMITS)[0].status for _ in range(2)]
    assert 1 == len(index.find_queue("q!fail").slots)
    put(index)
    claim(index)
    whole_queue.configure(index, "q", SettingsPatch(fail_handler=False))
    settle(index, FAIL)

    assert 1 == len(index.find_queue("q!fail").slots)


def test_finish_makes_a_fail_job_with_the_joined_range(index: Index) -> None:
    whole_queue.configure(index, "q", SettingsPatch(fail_handler=True))
    put(index)
    revision = claim(index).revision
    settle(index, HandOff())
    last = put(index, UPDATE_ONLY, data=NO_DATA).revision
    assert "done" == settling.finish(index, "q", "a", FAIL, revision)
    [fail] = index.find_queue("q!fail").slots.values()

    assert fail.current is not None
    assert fail.current.origin is not None
    assert last == fail.current.origin.revision


@pytest.mark.parametrize(("size", "expected"), [(0, None), (2, None), (3, b"123"), (4096, b"123")])
def test_the_log_has_a_result_as_configured(index: Index, size: int, expected: bytes | None) -> None:
    """Retention does not matter; a longer result is left out, not cut."""
    whole_queue.configure(index, "q", SettingsPatch(log_results=size))
    put(index)
    claim(index)
    settle(index, Complete(result=b"123", retention=OutcomeRetention(completed=0)))
    index.end_step()
    [(_, event)] = index.find_queue("q").log.page(None, 9).events

    assert ("completed", expected) == (event.kind, event.result)


def test_the_reason_of_a_cancellation_is_in_outcome_and_event(index: Index) -> None:
    """The text is cut as that of any error."""
    put(index)
    claim(index)
    settle(index, Cancelled(error=Error(type="TooLate", message="x" * 100_000)))
    index.end_step()
    [(_, event)] = index.find_queue("q").log.page(None, 9).events
    outcome = slot(index).outcome

    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error == event.error
    assert 20_000 > len(outcome.error.message)


@pytest.mark.parametrize("action", [Complete(), Cancelled(), FAIL])
def test_an_outcome_keeps_the_attributes_and_takes_a_patch(index: Index, action: SettleAction) -> None:
    put(index)
    claim(index)
    settle(index, action)
    status = by_id.amend(index, "q", "a", JobPatch(attributes={"n": b"2"}), LIMITS)
    outcome = slot(index).outcome

    assert "amended" == status
    assert outcome is not None
    assert {"k": b"1", "n": b"2"} == outcome.kept_attributes


def test_a_patch_that_makes_an_outcome_too_large_is_refused(index: Index) -> None:
    put(index)
    claim(index)
    settle(index, Complete())
    before = slot(index)
    with pytest.raises(Refused) as caught:
        by_id.amend(index, "q", "a", JobPatch(attributes={"n": b"2"}), Limits(attributes=3))

    assert "attributes" == caught.value.field
    assert before == slot(index)


def test_a_patch_of_a_live_job_leaves_its_outcome_alone(index: Index) -> None:
    put(index)
    claim(index)
    settle(index, FAIL)
    put(index)
    by_id.amend(index, "q", "a", JobPatch(attributes={"n": b"2"}), LIMITS)
    outcome = slot(index).outcome

    assert outcome is not None
    assert {"k": b"1"} == outcome.kept_attributes


def test_retry_failed_brings_the_attributes_as_they_are_then(index: Index) -> None:
    put(index)
    claim(index)
    settle(index, FAIL)
    by_id.amend(index, "q", "a", JobPatch(attributes={"n": b"2"}), LIMITS)
    by_id.retry_failed(index, "q", ["a"])
    job = slot(index).current

    assert job is not None
    assert {"k": b"1", "n": b"2"} == job.data.attributes


def test_an_absent_request_writes_nothing_but_its_key(index: Index) -> None:
    """The repeat gets the first answer, also if the id has a job by then."""
    number = index.number
    first = put(index, UPDATE_ONLY, "key", data=NO_DATA)
    assert ("absent", "nothing", 0, 0, number) == (*first_four(first), index.number)
    assert Slot() == slot(index)
    put(index)
    again = put(index, UPDATE_ONLY, "key", data=NO_DATA)

    assert ("absent", "nothing", 0, 0) == first_four(again)
    assert (True, "") == (again.repeated, again.id)


def first_four(answer: EnqueueResult) -> tuple[str, str, int, int]:
    return answer.status, answer.found, answer.first, answer.revision


def test_a_cancel_drops_a_successor_that_creates_nothing(index: Index) -> None:
    """Its event has run_at 0, and its range is a dropped range."""
    put(index)
    claim(index)
    last = put(index, UPDATE_ONLY, data=NO_DATA).revision
    assert ["cancelled"] == by_id.cancel(index, "q", ["a"], running=False)
    index.end_step()
    [(_, event)] = index.find_queue("q").log.page(None, 9).events

    assert ((last, last),) == slot(index).dropped
    assert ("cancelled", 0, last) == (event.kind, event.run_at, event.revision)
