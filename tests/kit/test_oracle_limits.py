"""The oracle on short examples about keys and limits, with small numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from attrs import evolve

from dibs.model import check_arguments, rates
from dibs.model.job import JobData, NewJob
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    HandOff,
    Release,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs.storage.indexed.key_lines import KeyLines
from dibs.storage.memory import MemoryStorage
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle import queue as starts
from dibs_conformance.oracle.changes import NotLater
from dibs_conformance.sequential.bad_calls import check_bad_calls
from dibs_conformance.sequential.capabilities import obeys_limits
from dibs_conformance.sequential.waits import check_waits_under_limits
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
    """The clock of dibs.model, the replay of the oracle, and the contract's "in any period of w µs" agree."""
    random, clock, now = Random(1), 0, 1_000
    begun: list[starts.Charge] = []
    for _ in range(200):
        now += random.choice((0, 0, 1, 1, 2, 10))
        allowed = {
            rates.allows_start(clock, rate, now),
            starts.first_start(rate, begun) <= now,
            keeps_each_period(rate, [*begun, (now, None)]),
        }

        assert len(allowed) == 1
        assert max(now, rates.next_start(clock, rate)) == max(now, starts.first_start(rate, begun))
        if allowed == {True}:
            clock = rates.charge_start(clock, rate, now)
            begun.append((now, None))


@pytest.mark.parametrize("rate", RATES)
def test_the_model_and_the_oracle_agree_about_costs(rate: StartRate) -> None:
    random, clock, now = Random(2), 0, 1_000
    charges: list[starts.Charge] = []
    for _ in range(400):
        now += random.choice((0, 0, 1, 1, 2, 10))
        if charges and random.random() < 0.5:
            cost = random.choice((0, 1, 333, 999, 1000, 1001, 2500, 4000))
            clock = rates.charge_cost(clock, rate, cost, now)
            charges.append((now, cost))
        elif rates.allows_start(clock, rate, now):
            clock = rates.charge_start(clock, rate, now)
            charges.append((now, None))
            assert keeps_each_period(rate, charges)

        assert max(now, rates.next_start(clock, rate)) == max(now, starts.first_start(rate, charges))


def keeps_each_period(rate: StartRate, charges: list[starts.Charge]) -> bool:
    """Return whether the charges of each period sum to at most `w + burst * interval` µs."""
    interval = -(-rate.per * 1000 // rate.starts)
    total, end = 0, charges[-1][0]
    for at, cost in reversed(charges):
        total += interval if cost is None else -((1000 - cost) * interval // 1000)
        if cost is None and total > (end - at) * 1000 + rate.burst * interval:
            return False
    return True


# -- storages without the capability -----------------------------------------------------------------


async def test_a_storage_without_limits_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without = evolve(MemoryStorage.capabilities, limits=False)
    monkeypatch.setattr(MemoryStorage, "capabilities", without)
    locations = Locations("memory:")

    async with locations.open(locations.new(), "manual") as storage:
        tried, wrong = await check_bad_calls(storage)

    assert wrong == []
    assert tried > 30
    assert not await obeys_limits(locations)


async def test_a_storage_that_accepts_bad_limits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_arguments, "_check_limits", lambda *_, **__: None)
    locations = Locations("memory:")

    async with locations.open(locations.new(), "manual") as storage:
        _, wrong = await check_bad_calls(storage)

    assert "configure, per_key=0: accepted, expected Refused for the field" in wrong


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
