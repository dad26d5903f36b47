"""The oracle and the laws on short examples about keys and limits, with small numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from attrs import evolve
from msgspec.structs import replace

from dibs.model import check_arguments, rates
from dibs.model.job import ActiveRun, Job, JobData, NewJob, Slot
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    HandOff,
    Release,
    Settings,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs.model.results import ClaimResult, WaitResult
from dibs.storage.indexed.key_lines import KeyLines
from dibs.storage.memory import MemoryStorage
from dibs_conformance.laws import LIMIT_LAWS, Law, LawBroken, ObservedCall, ObservedHistory, laws_for
from dibs_conformance.laws import admission as observed
from dibs_conformance.laws.limits import AdmittedTaken, NextDueNotLate, PerKeyExact, RateExact, RoomWakes
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle import queue as starts
from dibs_conformance.oracle.admission import NotLater
from dibs_conformance.sequential.limit_probes import check_bad_limits, check_waits_under_limits, obeys_limits
from dibs_conformance.target import Locations
from dibs_conformance.verbs import claim, configure, enqueue, grant, settle
from tests.kit.mutants.unwoken import MUTED, AlwaysWoken

RATES = (StartRate(1, 10), StartRate(1, 10, 3), StartRate(3, 10, 2), StartRate(3, 1, 3), StartRate(7, 2, 4))


class LimitedOracle:
    """An oracle with a queue of waiting jobs, written as "id" or "id:key"."""

    def __init__(self, *jobs: str, **limits: Any) -> None:
        self.oracle = Oracle()
        self.oracle.begin_call(0)
        grant.step(self.oracle, ["q"], "lease", 1_000_000, "ann", 0)
        configure.step(self.oracle, "q", SettingsPatch(**limits), 0)
        self.enqueue(*jobs)

    def enqueue(self, *jobs: str, run_at: int = 0) -> None:
        now = self.oracle.begin_call(0)
        requests = [
            EnqueueRequest(job=NewJob(id=id, data=JobData(key=key or None), run_at=run_at))
            for id, _, key in (job.partition(":") for job in jobs)
        ]
        enqueue.step(self.oracle, "q", requests, now)

    def claim(self, now: int = 0, limit: int = 10) -> list[str]:
        answer = claim.step(self.oracle, "q", "lease", limit, self.oracle.begin_call(now))
        self.next_due: Any = answer.next_due
        return [job.id for job in answer.jobs]

    def settle(self, id: str, action: SettleAction, now: int = 0) -> None:
        job = self.oracle.get("q", id).current
        assert job is not None
        assert job.run is not None
        settlement = Settlement(id=id, fence=job.run.fence, action=action)
        settle.step(self.oracle, "q", [settlement], self.oracle.begin_call(now))


def test_a_full_key_is_passed_over() -> None:
    limited = LimitedOracle("a:k", "b:k", "c:m", "d", per_key=1)

    assert ["a", "c", "d"] == limited.claim()
    assert limited.claim() == []
    limited.settle("a", Complete())
    assert ["b"] == limited.claim()


@pytest.mark.parametrize("action", [Complete(), HandOff(), Release(delay=5)])
def test_each_action_makes_room(action: SettleAction) -> None:
    limited = LimitedOracle("a:k", "b:k", per_key=1)
    limited.claim()

    limited.settle("a", action)

    assert ["b"] == limited.claim()


def test_a_run_counts_under_its_own_key() -> None:
    limited = LimitedOracle("a:k", per_key=1)
    limited.claim()
    limited.enqueue("a:m", "b:k", "c:m")

    assert ["c"] == limited.claim()
    limited.settle("a", Complete())
    assert ["b"] == limited.claim()


def test_a_start_is_charged_and_not_given_back() -> None:
    limited = LimitedOracle("a", "b", "c", rate=StartRate(1, 10, 2))

    assert ["a", "b"] == limited.claim()
    assert NotLater(0, 10) == limited.next_due
    limited.settle("a", Release())
    assert limited.claim(9) == []
    assert ["a"] == limited.claim(10)


def test_the_clock_of_a_key_holds_its_jobs_only() -> None:
    limited = LimitedOracle("a:k", "b:k", "c:m", "d", "e", key_rate=StartRate(1, 10))

    assert ["a", "c", "d", "e"] == limited.claim()
    assert NotLater(0, 10) == limited.next_due


def test_the_same_rate_keeps_its_clock_and_another_begins_again() -> None:
    limited = LimitedOracle("a", "b", "c", rate=StartRate(1, 10))
    limited.claim()
    configure.step(limited.oracle, "q", SettingsPatch(rate=StartRate(1, 10), max_active=9), 0)

    assert limited.claim() == []
    configure.step(limited.oracle, "q", SettingsPatch(rate=StartRate(1, 20)), 0)
    assert ["b"] == limited.claim()


def test_a_full_key_has_no_next_due() -> None:
    limited = LimitedOracle("a:k", "b:k", per_key=1, rate=StartRate(1, 10))
    limited.claim()

    assert NotLater(0, None) == limited.next_due


def test_bounds_of_next_due() -> None:
    assert [NotLater(5, 9).allows(time) for time in (None, 5, 6, 9, 10)] == [False, False, True, True, False]
    assert [NotLater(5, None).allows(time) for time in (None, 5, 6)] == [True, False, True]


@pytest.mark.parametrize("rate", RATES)
def test_three_definitions_of_a_rate_agree(rate: StartRate) -> None:
    """The clocks of the model, the replayed ones of the oracle and the stretches of the laws agree."""
    random, clock, now = Random(1), 0, 1_000
    begun: list[int] = []
    for _ in range(200):
        now += random.choice((0, 0, 1, 1, 2, 10))
        allowed = {
            rates.allows_start(clock, rate, now),
            starts.first_start(rate, begun) <= now,
            observed.first_start(rate, begun) <= now,
        }
        times = {max(now, rates.next_start(clock, rate)), max(now, starts.first_start(rate, begun))}

        assert len(allowed) == 1
        assert times == {max(now, observed.first_start(rate, begun))}
        if allowed == {True}:
            clock = rates.charge_start(clock, rate, now)
            begun.append(now)


# -- the laws ----------------------------------------------------------------------------------------


def job(id: str, key: str | None = None, run_at: int = 0, seq: int = 1) -> Job:
    data = JobData(key=key)
    return Job(id=id, data=data, run_at=run_at, enqueued_at=0, seq=seq, first=1, revision=1)


def claimed(one: Job, now: int = 0) -> Job:
    return replace(one, attempts=1, run=ActiveRun(fence=1, lease="lease", holder="", claimed_at=now))


class Observer:
    """A law with a history of planted answers."""

    def __init__(self, law: type[Law], **limits: Any) -> None:
        self.law = law()
        self.history = ObservedHistory()
        self.observe("configure", {"patch": SettingsPatch(**limits)}, Settings(**limits))

    def observe(self, verb: str, args: dict[str, Any], answer: Any, now: int = 0, *waiting: Job) -> None:
        slots = {one.id: Slot(current=one) for one in waiting} or {"other": Slot()}
        call = ObservedCall(verb=verb, queue="q", now=now, args=args, answer=answer, slots=slots)
        self.law.before(call, self.history)
        self.history.add(call)
        self.law.after(call, self.history)

    def claim(
        self, *jobs: Job, waiting: tuple[Job, ...] = (), now: int = 0, next_due: int | None = None
    ) -> None:
        answer = ClaimResult(jobs=tuple(claimed(one, now) for one in jobs), now=now, next_due=next_due)
        self.observe("claim", {"lease": "lease", "limit": 10}, answer, now, *waiting)


def test_a_second_run_of_a_key_breaks_a_law() -> None:
    observer = Observer(PerKeyExact, per_key=1)
    observer.claim(job("a", "k"), job("b", "m"), job("c"), job("d"))

    with pytest.raises(LawBroken, match="has 2 runs"):
        observer.claim(job("e", "k"))


@pytest.mark.parametrize("limit", ["rate", "key_rate"])
def test_an_early_start_breaks_a_law(limit: str) -> None:
    observer = Observer(RateExact, **{limit: StartRate(1, 10, 2)})
    observer.claim(job("a", "k"), job("b", "k"))
    observer.claim(job("c", "k"), now=10)

    with pytest.raises(LawBroken, match="4 starts in 19 ms"):
        observer.claim(job("d", "k"), now=19)


def test_an_admitted_job_that_is_left_breaks_a_law() -> None:
    observer = Observer(AdmittedTaken, per_key=1)
    observer.claim(job("a", "k"), waiting=(job("b", "k", seq=2), job("c", "m", run_at=5)))

    with pytest.raises(LawBroken, match="passed over 'c'"):
        observer.claim(waiting=(job("b", "k", seq=2), job("c", "m", run_at=5)), now=5)


def test_an_admitted_job_that_is_passed_over_breaks_a_law() -> None:
    observer = Observer(AdmittedTaken, per_key=1)

    with pytest.raises(LawBroken, match="passed over 'a'"):
        observer.claim(job("b", "k", seq=2), waiting=(job("a", "k", seq=1),))


def test_a_late_next_due_breaks_a_law() -> None:
    observer = Observer(NextDueNotLate, key_rate=StartRate(1, 10))
    waiting = (job("b", "k", seq=2),)
    observer.claim(job("a", "k"), waiting=waiting, next_due=10)
    observer.claim(waiting=waiting, now=2, next_due=3)

    with pytest.raises(LawBroken, match="next_due is 11"):
        observer.claim(waiting=waiting, now=5, next_due=11)
    with pytest.raises(LawBroken, match="next_due is None"):
        observer.claim(waiting=waiting, now=5)
    with pytest.raises(LawBroken, match="not after now"):
        observer.claim(waiting=waiting, now=5, next_due=5)


def test_a_token_that_outlives_an_admission_breaks_a_law() -> None:
    observer = Observer(RoomWakes, per_key=1)
    args = {"next_due": None}
    observer.observe("wait", args, WaitResult(woken=True, since={}), 0, job("a", "k"))

    with pytest.raises(LawBroken, match="token still stands"):
        observer.observe("wait", args, WaitResult(woken=False, since={}), 0, job("a", "k"))


# -- storages without the capability -----------------------------------------------------------------


async def test_a_storage_without_limits_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without = evolve(MemoryStorage.capabilities, limits=False)
    monkeypatch.setattr(MemoryStorage, "capabilities", without)
    locations = Locations("memory:")

    async with locations.open(locations.new(), "manual") as storage:
        tried, wrong = await check_bad_limits(storage)

    assert wrong == []
    assert tried > 30
    assert not await obeys_limits(locations)
    assert set(LIMIT_LAWS) == set(laws_for(evolve(without, limits=True))) - set(laws_for(without))


async def test_a_storage_that_accepts_bad_limits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_arguments, "_check_limits", lambda *_, **__: None)
    locations = Locations("memory:")

    async with locations.open(locations.new(), "manual") as storage:
        _, wrong = await check_bad_limits(storage)

    assert any("accepted {'per_key': 0}" in text for text in wrong)


async def test_a_storage_that_ignores_its_limits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    locations = Locations("memory:")
    assert await obeys_limits(locations)

    monkeypatch.setattr(KeyLines, "_is_full", lambda *_: False)

    assert not await obeys_limits(locations)


async def test_waits_that_end_without_work_are_found() -> None:
    locations = Locations("memory:")

    async with locations.open(locations.new(), "manual") as storage:
        tried, wrong = await check_waits_under_limits(AlwaysWoken(storage, MUTED[0]))

    assert tried == len(wrong)
