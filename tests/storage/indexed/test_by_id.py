"""The verbs by id and of whole queues: retention, prune, amend, import, and the ids that wake waiters."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.job import (
    ActiveRun,
    EndKind,
    Error,
    Job,
    JobData,
    NewJob,
    Outcome,
    OutcomeRetention,
    Slot,
    Successor,
)
from dibs.model.limits import LIMITS
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    JobPatch,
    SettingsPatch,
    Settlement,
    Update,
)
from dibs.model.results import ExportRecord
from dibs.storage.indexed import by_id, claiming, enqueueing, reading, settling, whole_queue
from dibs.storage.indexed.index import Index

DAY = 86_400_000
ENDS: dict[EndKind, End] = {
    "completed": Complete(result=b"1"),
    "failed": Fail(error=Error(type="Oops")),
    "cancelled": Cancelled(),
}


def index_at(now: int) -> Index:
    index = Index()
    index.now = now
    return index


def put(index: Index, id: str = "a", queue: str = "q", **data: object) -> None:
    job = NewJob(id=id, data=JobData(**data))  # type: ignore[arg-type]
    enqueueing.enqueue(index, queue, [EnqueueRequest(job=job)])


def ended(index: Index, end: End, id: str = "a", queue: str = "q", **data: object) -> Outcome:
    """Run an id to this end, and return its outcome."""
    put(index, id, queue, **data)
    claiming.grant(index, [queue], "l", 10**9, "h")
    for job in claiming.claim(index, queue, "l", 100).jobs:
        assert job.run is not None
        settling.settle(index, queue, [Settlement(id=job.id, fence=job.run.fence, action=end)], LIMITS)
    outcome = index.find_queue(queue).slots[id].outcome
    assert outcome is not None
    return outcome


def retention(kind: EndKind, age: object) -> OutcomeRetention:
    return OutcomeRetention(**{kind: age})  # type: ignore[arg-type]


DEFAULTS: dict[EndKind, int] = {"completed": 3_600_000, "failed": 7 * DAY, "cancelled": 3_600_000}
#: The retentions of settlement, job and queue, and the expected one; None is for ever.
CHAINS: tuple[tuple[object, object, object, object], ...] = (
    (UNSET, UNSET, UNSET, "default"),
    (UNSET, UNSET, 7, 7),
    (UNSET, 8, 7, 8),
    (9, 8, 7, 9),
    (0, 8, 7, 0),
    (UNSET, 0, 7, 0),
    (None, 0, 7, None),
    (UNSET, None, 7, None),
    (UNSET, UNSET, None, None),
    (UNSET, UNSET, 0, 0),
)


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize(("of_end", "of_job", "of_queue", "kept"), CHAINS)
def test_the_first_retention_that_is_set_counts(
    kind: EndKind, of_end: object, of_job: object, of_queue: object, kept: object
) -> None:
    """The settlement comes first, then the job, the queue and the default; UNSET leaves it to the next."""
    index = index_at(1000)
    whole_queue.configure(index, "q", SettingsPatch(retention=retention(kind, of_queue)))
    end = replace(ENDS[kind], retention=retention(kind, of_end))
    outcome = ended(index, end, retention=retention(kind, of_job))
    ms = DEFAULTS[kind] if kept == "default" else kept

    assert (None if ms is None else 1000 + ms) == outcome.expires_at  # type: ignore[operator]


def test_an_outcome_that_is_not_kept_holds_nothing_but_still_answers_repeats() -> None:
    """Its fence and range stay until prune, so a repeated settlement gets the right result."""
    index = index_at(1000)
    outcome = ended(
        index, Complete(result=b"x" * 1000, retention=OutcomeRetention(completed=0)), payload=b"y" * 1000
    )
    repeat = Settlement(id="a", fence=outcome.fence, action=Complete())

    assert (None, None) == (outcome.result, outcome.data)
    assert [Slot()] == reading.get(index, "q", ["a"])
    assert ["done"] == [s.status for s in settling.settle(index, "q", [repeat], LIMITS)]
    assert 1 == whole_queue.prune(index, "q", 10).outcomes
    assert ["lost"] == [s.status for s in settling.settle(index, "q", [repeat], LIMITS)]


@pytest.mark.parametrize(("expired", "limit"), [(0, 3), (2, 3), (3, 3), (7, 3)])
def test_prune_to_the_end_takes_all_and_then_says_so(expired: int, limit: int) -> None:
    """Prune calls until `more` is False end, and leave no expired entry."""
    index = index_at(1000)
    for number in range(expired):
        job = NewJob(id=str(number))
        enqueueing.enqueue(index, "q", [EnqueueRequest(job=job, request_key=f"k{number}")])
        by_id.cancel(index, "q", [str(number)], running=False)
    index.now += 8 * DAY
    counts = []
    while (step := whole_queue.prune(index, "q", limit)).more:
        counts.append((step.outcomes, step.request_keys))
    counts.append((step.outcomes, step.request_keys))

    assert (expired, expired) == tuple(sum(column) for column in zip(*counts, strict=True))
    assert all(outcomes <= limit and keys <= limit for outcomes, keys in counts)
    assert ({}, {}) == (index.find_queue("q").slots, index.find_queue("q").keys)


def test_prune_leaves_what_is_still_kept() -> None:
    index = index_at(1000)
    ended(index, ENDS["completed"], "kept", retention=OutcomeRetention(completed=None))
    put(index, "waiting")

    assert 0 == whole_queue.prune(index, "q", 10).outcomes
    assert {"kept", "waiting"} == set(index.find_queue("q").slots)


def test_a_priority_amended_on_a_scheduled_job_counts_when_it_falls_due() -> None:
    index = index_at(1000)
    for id in ("a", "b"):
        enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id=id, run_at=2000))])
    for priority in (9, -9, 5):
        assert "amended" == by_id.amend(index, "q", "b", JobPatch(priority=priority), LIMITS)
    claiming.grant(index, ["q"], "l", 10**6, "h")

    assert 2 == reading.counts(index, ["q"])["q"].scheduled
    assert () == claiming.claim(index, "q", "l", 9).jobs
    index.now = 2000
    assert ["b", "a"] == [job.id for job in claiming.claim(index, "q", "l", 9).jobs]


@pytest.mark.parametrize("kind", ENDS)
def test_amending_the_retention_of_one_end_leaves_another_end_alone(kind: EndKind) -> None:
    """A patch for another kind of end does not change an outcome that is kept for ever."""
    index = index_at(1000)
    ended(index, ENDS[kind], retention=OutcomeRetention(completed=None, failed=None, cancelled=None))
    other = next(name for name in ENDS if name != kind)

    assert "amended" == by_id.amend(index, "q", "a", JobPatch(retention=retention(other, 5)), LIMITS)
    assert index.find_queue("q").slots["a"].outcome is not None
    assert None is index.find_queue("q").slots["a"].outcome.expires_at  # type: ignore[union-attr]

    assert "amended" == by_id.amend(index, "q", "a", JobPatch(retention=retention(kind, 5)), LIMITS)
    assert 1005 == index.find_queue("q").slots["a"].outcome.expires_at  # type: ignore[union-attr]


def test_an_amend_that_grows_too_large_is_refused_whole() -> None:
    """Neither the current nor the successor takes a part of the patch."""
    index = index_at(1000)
    put(index, attributes={"a": b'"' + b"x" * 40_000 + b'"'})
    before = index.find_queue("q").slots["a"]
    patch = JobPatch(attributes={"b": b'"' + b"x" * 40_000 + b'"'}, priority=5)
    with pytest.raises(Refused):
        by_id.amend(index, "q", "a", patch, LIMITS)

    assert before == index.find_queue("q").slots["a"]


JOB = Job(id="a", data=JobData(), run_at=0, enqueued_at=0, seq=50, first=50, revision=60, attempts=1)
RUN = ActiveRun(fence=7000, lease=None, holder="h", claimed_at=0)
NEXT = Successor(
    data=JobData(), replaces=True, run_at=0, lo=None, hi=None, resets=True, enqueued_at=0, seq=8000,
    first=8000,
    revision=8500,
)  # fmt: skip
ENDED = Outcome(kind="completed", fence=9000, first=1, revision=2, ended_at=0, expires_at=None)


@pytest.mark.parametrize(
    ("slot", "highest"),
    [
        (Slot(JOB), 60),
        (Slot(replace(JOB, run=RUN)), 7000),
        (Slot(replace(JOB, run=replace(RUN, lease="l"))), 7000),
        (Slot(replace(JOB, run=RUN), NEXT), 8500),
        (Slot(None, None, ENDED), 9000),
        (Slot(None, None, ENDED, ((9500, 9600),)), 9600),
    ],
    ids=["a waiting job", "a handed-off run", "a run", "a successor", "an outcome", "a dropped range"],
)
def test_an_import_raises_the_counters_above_what_comes_in(slot: Slot, highest: int) -> None:
    index = index_at(0)
    assert ["imported"] == whole_queue.import_(index, "q", [ExportRecord(id="a", slot=slot)])

    assert highest < index.next_number()


def test_an_import_into_an_id_that_exists_changes_nothing() -> None:
    index = index_at(1000)
    put(index)
    before = (index.find_queue("q").slots["a"], index.number)

    assert ["exists"] == whole_queue.import_(index, "q", [ExportRecord(id="a", slot=Slot(JOB))])
    assert before == (index.find_queue("q").slots["a"], index.number)


def test_forgetting_an_id_wakes_its_waiters() -> None:
    """Otherwise its waiters would notice only at the next slow poll that no outcome will come."""
    index = index_at(1000)
    put(index)
    index.end_step()
    by_id.forget(index, "q", ["a"])

    assert [["a"]] == [changes.ended for _, changes in index.end_step()]


def test_a_payload_changed_by_its_caller_later_is_kept_as_it_was() -> None:
    """The storage keeps a copy of the attributes."""
    index, attributes = index_at(1000), {"k": b"1"}
    enqueueing.enqueue(
        index,
        "q",
        [EnqueueRequest(job=NewJob(id="a", data=JobData(attributes=attributes)), on_conflict=Update())],
    )
    attributes["k"] = b"2"
    job = index.find_queue("q").slots["a"].current

    assert job is not None
    assert {"k": b"1"} == job.data.attributes


def test_what_fails_for_good_in_a_fail_queue_is_kept_for_ever() -> None:
    """No retention of the job, the queue or the settlement changes that."""
    index = index_at(1000)
    whole_queue.configure(index, "q", SettingsPatch(fail_handler=True))
    whole_queue.configure(index, "q!fail", SettingsPatch(fail_handler=True))
    ended(index, Fail(error=Error(type="Oops")), payload=b"p")
    [fail_id] = index.find_queue("q!fail").slots
    whole_queue.configure(index, "q!fail", SettingsPatch(retention=OutcomeRetention(failed=0)))
    claiming.grant(index, ["q!fail"], "l", 10**9, "h")
    [job] = claiming.claim(index, "q!fail", "l", 9).jobs
    assert job.run is not None
    end = Fail(error=Error(type="Again"), retention=OutcomeRetention(failed=0))
    settling.settle(index, "q!fail", [Settlement(id=fail_id, fence=job.run.fence, action=end)], LIMITS)
    outcome = index.find_queue("q!fail").slots[fail_id].outcome

    assert outcome is not None
    assert (None, b"p") == (outcome.expires_at, outcome.data.payload if outcome.data else None)
    assert "q!fail!fail" not in index.queues
