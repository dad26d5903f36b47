"""Planted races: L1 must find each of them within its bound."""

from __future__ import annotations

import pytest

from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs_conformance.concurrent import levels
from dibs_conformance.concurrent.levels import interleaved
from dibs_conformance.concurrent.linearize import late_event, try_late_commit
from dibs_conformance.report.values import level_verdict
from dibs_conformance.servers import PostgresServer
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs.actions import ClientCall, Round, Snapshot
from tests.kit.concurrent.test_levels import ALONE, run_level
from tests.kit.mutants import fences
from tests.kit.mutants.races import RACES, Race

#: The races that the module `fences` plants.
FENCES = [name for name, race in RACES.items() if race.plant.__module__ == fences.__name__]


@pytest.mark.parametrize(
    "race", [race for race in RACES.values() if race.where == "memory"], ids=lambda race: race.name
)
def test_a_race_in_memory_is_found(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    race.plant(monkeypatch)
    monkeypatch.setattr(levels, "SHRINK_SECONDS", 0.0)

    found = run_level(interleaved, "memory:", ALONE, race.examples)

    assert "broken" == level_verdict(found), f"not found in {found.histories} examples: {race.breaks}"


@pytest.mark.certify
@pytest.mark.parametrize("seed", range(11, 16))
@pytest.mark.parametrize("name", ["a_settle_checks_its_fence_then_writes", *FENCES])
def test_a_late_write_is_found_with_every_seed(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    RACES[name].plant(monkeypatch)
    monkeypatch.setattr(levels, "SHRINK_SECONDS", 0.0)

    assert "broken" == level_verdict(run_level(interleaved, "memory:", ALONE, 100, seed))


def late_commit(postgres_server: PostgresServer) -> str:
    locations = Locations(postgres_server.url)
    try:
        plan = LevelPlan(locations=locations, claims=ALONE, seed=1, budget=1, examples=1)
        return level_verdict(try_late_commit(plan))
    finally:
        locations.remove_all()


def test_an_entry_that_becomes_visible_late_is_found(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    [race] = [race for race in RACES.values() if race.where == "postgres"]

    assert "reached" == late_commit(postgres_server)
    race.plant(monkeypatch)
    assert "broken" == late_commit(postgres_server)


def read(after: str | None, offset: str, *events: str) -> ClientCall:
    page = EventPage(events=tuple((at, event(at)) for at in events), offset=offset)
    args = {"after": after, "limit": 10}
    call = ClientCall(client="ann", operation="events", queue="q", args=args, now=1, invoked=1.0)
    call.answer, call.completion = page, "answered"
    return call


def event(offset: str) -> LogEvent:
    return LogEvent(kind="completed", id=f"job {offset}", at=1)


def late(*calls: ClientCall, log: str) -> str:
    end = Snapshot(now=1, slots={}, events=[event(at) for at in log], offsets=list(log))
    return late_event([Round(calls=list(calls), snapshot=end)])


def test_a_reader_gets_each_event_up_to_its_offset() -> None:
    assert "" == late(read(None, "3", "1", "3"), log="13")
    assert "" == late(read("1", "3", "3"), log="13")
    assert "" == late(read(None, "3", "1", "3"), log="134")
    assert "the event completed of 'job 2' appeared" in late(read(None, "3", "1", "3"), log="123")
    assert "no longer has" in late(read(None, "3", "1", "3"), log="3")


def test_an_unanswered_reading_proves_nothing() -> None:
    unanswered = read(None, "3", "1")
    unanswered.completion = "unknown"

    assert "" == late(unanswered, log="123")
