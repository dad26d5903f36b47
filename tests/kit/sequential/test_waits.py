"""The kit finds storages whose waits miss a change, or end without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import OnConflict, Update
from dibs.model.results import EnqueueResult
from dibs.storage import memory
from dibs.storage.file.storage import FileStorage
from dibs.storage.indexed import enqueueing
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.waiters import Wakeups
from dibs.storage.protocol import Clock
from dibs.storage.registry import open_storage
from dibs_conformance import certify
from dibs_conformance.sequential import waits
from dibs_conformance.sequential.waits import check_progress_waits, missing_wake_ups
from dibs_conformance.target import Locations, OpenStorage
from tests.kit.mutants.unwoken import MUTED, AlwaysWoken, Muted, NeverWoken, WakesAll, WakesLate

Wrap = Callable[[Any], Any]


#: Number of muted changes that the default run tries; the marker `certify` adds the rest.
FEW = 3


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try each change once: a change that is never noticed needs no second try."""
    monkeypatch.setattr(waits, "ATTEMPTS", 1)


def opening(wrap: Wrap, only: int | None = None) -> OpenStorage:
    """Return a function that opens a memory storage and wraps it: all openings, or each `only`-th of two."""
    opened = 0

    @asynccontextmanager
    async def open_wrapped(location: str, clock: Clock) -> AsyncIterator[Any]:
        nonlocal opened
        opened += 1
        async with open_storage(f"memory:{location}", clock) as storage:
            yield wrap(storage) if only is None or opened % 2 == only else storage

    return open_wrapped


def missing(target: str | OpenStorage, *, shared: bool = False) -> list[str]:
    locations = Locations(target)
    try:
        return asyncio.run(missing_wake_ups(locations, shared=shared))
    finally:
        locations.remove_all()


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(
    "muted",
    [*MUTED[:FEW], *(pytest.param(one, marks=pytest.mark.certify) for one in MUTED[FEW:])],
    ids=lambda one: one.found,
)
def test_a_change_that_wakes_no_waiter_is_found(muted: Muted) -> None:
    found = missing(opening(muted))

    assert f"{muted.found} by the same client" in found
    assert f"{muted.found} by another client" in found


@pytest.mark.usefixtures("one_attempt")
def test_a_due_time_that_ends_no_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "seconds_until_due", lambda *_: None)

    assert ["a wait for work after a due time by the same client"] == missing(opening(lambda one: one))[:1]


@pytest.mark.usefixtures("one_attempt")
def test_a_wake_that_ends_no_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = enqueueing.admit

    def mutant(
        index: Index, queue: QueueIndex, new: NewJob, rule: OnConflict, *, bounded: bool = False
    ) -> EnqueueResult:
        version = queue.work_version
        result = original(index, queue, new, rule, bounded=bounded)
        if isinstance(rule, Update) and rule.run_at == "wake":
            queue.work_version = version
        return result

    monkeypatch.setattr(enqueueing, "admit", mutant)

    assert "a wait for work after a wake by the same client" in missing(opening(lambda one: one))


@pytest.mark.usefixtures("one_attempt")
def test_a_wait_that_ignores_its_old_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a wait is woken by changes, but misses those before it began."""
    monkeypatch.setattr(Wakeups, "has_changed", lambda *_: False)

    assert "a wait for ids after complete by the same client" in missing(opening(lambda one: one))


@pytest.mark.usefixtures("one_attempt")
def test_a_storage_that_hears_only_itself_is_found() -> None:
    found = missing(opening(MUTED[2], only=0))

    assert "a wait for work after reap by another client" in found
    assert "a wait for work after reap by the same client" not in found


@pytest.mark.usefixtures("one_attempt")
def test_a_storage_that_does_not_hear_other_processes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileStorage, "_on_commit_seen", lambda *_: None)
    found = missing(f"file:{tmp_path}/jobs?poll=60", shared=True)

    assert "a wait for work after resume by another process" in found
    assert "a wait for ids after finish by another process" in found


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(
    "wrap", [MUTED[4], pytest.param(lambda one: NeverWoken(one, MUTED[2]), marks=pytest.mark.certify)]
)
def test_a_false_claim_of_push_wakeups_fails(wrap: Wrap) -> None:
    report = certify(opening(wrap), examples=0, seed=1)
    [capability] = [one for one in report.capabilities if one.name == "push_wakeups"]

    assert capability.claimed
    assert capability.found is False
    assert not report.certified


def test_a_wait_that_always_ends_is_found() -> None:
    report = certify(opening(lambda one: AlwaysWoken(one, MUTED[2])), examples=1, seed=1)

    assert "an idle wait does not end" in {one.law for one in report.levels[0].failures}


@pytest.mark.parametrize(
    ("wrap", "found"),
    [
        (WakesLate, "a report of a late holder ended a wait for progress"),
        (WakesLate, "a report of a memo alone ended a wait for progress"),
        (WakesAll, "a report with progress ended a wait for ids"),
        (WakesAll, "a report with progress ended a wait for events"),
        (WakesAll, "a report with progress ended a wait for work"),
    ],
)
async def test_a_report_that_wakes_other_waits_is_found(wrap: Any, found: str) -> None:
    async with open_storage("memory:", "manual") as storage:
        _, wrong = await check_progress_waits(wrap(storage, MUTED[0]))

    assert found in wrong
