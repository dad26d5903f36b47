"""Random clients: recordings of storages of dibs break no rule, and recordings of a storage with a bug do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dibs.storage.capabilities import Capabilities
from dibs.storage.memory import MemoryStorage
from dibs_conformance.history import free_run as free_run_module
from dibs_conformance.history.free_run import free_run
from dibs_conformance.report import Findings
from dibs_conformance.servers import PostgresServer, RedisServer
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.mutants import MUTANTS
from tests.kit.mutants.races import RACES

#: Bugs planted in the memory storage, and a rule that finds each.
CAUGHT = {
    "an_enqueue_during_a_run_is_queued_at_once": "R22",
    "the_fence_is_a_small_counter": "R4",
    "settle_ignores_the_fence": "R22",
    "every_repeat_is_done": "R22",
    "the_least_urgent_first": "R12",
    "a_job_is_due_too_early": "R15",
    "an_end_loses_the_successor": "R22",
    "a_return_loses_the_successor": "R22",
    "the_first_update_wins": "R22",
    "updates_never_reset_the_counts": "R22",
    "a_release_counts": "R22",
    "a_renewal_may_shorten": "R17",
    "a_dropped_lease_stays_alive": "R17",
    "keys_are_not_remembered": "R9",
    "the_fail_job_is_not_made": "R14",
    "the_fail_job_loses_its_payload": "R14",
    "the_result_is_not_kept": "R22",
}


def run(url: str, runs: int, *, shared: bool, seed: int = 1) -> Findings:
    locations = Locations(url)
    claims = Capabilities(shared=shared)
    try:
        return free_run(LevelPlan(locations=locations, claims=claims, seed=seed, budget=0, examples=runs))
    finally:
        locations.remove_all()


def broken(found: Findings) -> set[str]:
    return {failure.law.split()[0] for failure in found.failures}


def failure_text(found: Findings) -> str:
    return "\n".join(
        line for failure in found.failures for line in (failure.law, failure.why, *failure.story)
    )


def test_memory_breaks_no_rule_and_every_rule_applies() -> None:
    found = run("memory:", 3, shared=False)

    assert not found.failures, failure_text(found)
    assert [] == [law.name for law in found.laws if not law.met]


@pytest.mark.parametrize(("bug", "rule"), CAUGHT.items(), ids=CAUGHT)
def test_a_bug_is_found_in_recorded_calls(bug: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are only recorded, and not compared with an oracle."""
    monkeypatch.setattr(free_run_module, "DRAIN_TIMEOUT", 1.0)
    MUTANTS[bug].plant(monkeypatch)

    assert any(rule in broken(run("memory:", 1, shared=False, seed=seed)) for seed in range(30))


#: Races planted in the memory storage, and the rule that finds each.
CAUGHT_RACES = {
    "max_active_is_counted_in_a_step_of_its_own": "R23",
    "a_claim_counts_runs_in_a_step_of_its_own": "R30",
    "a_claim_reads_clocks_in_a_step_of_its_own": "R31",
    "settings_are_cached_for_a_second": "R24",
    "a_configure_writes_all_settings_that_it_read": "R25",
    "an_import_checks_then_writes": "R22",
    "a_prune_checks_then_removes": "R22",
    "a_settle_checks_its_fence_then_writes": "R22",
    "an_entry_has_a_number_that_was_drawn_in_an_earlier_step": "R26",
}


def stop_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Await after each reading step, so that other clients run. A correct storage passes with this pause."""
    run_read, random = MemoryStorage._run_read, Random(1)

    async def stopping(self: MemoryStorage, *args: Any) -> Any:
        answer = await run_read(self, *args)
        for _ in range(random.randrange(12)):
            await asyncio.sleep(0)
        return answer

    monkeypatch.setattr(MemoryStorage, "_run_read", stopping)


def test_a_storage_that_stops_between_steps_breaks_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_between_steps(monkeypatch)
    found = run("memory:", 5, shared=False)

    assert not found.failures, failure_text(found)


@pytest.mark.parametrize(("race", "rule"), CAUGHT_RACES.items(), ids=CAUGHT_RACES)
def test_a_race_is_found_in_recorded_calls(race: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_run_module, "DRAIN_TIMEOUT", 1.0)
    stop_between_steps(monkeypatch)
    RACES[race].plant(monkeypatch)

    assert any(rule in broken(run("memory:", 1, shared=False, seed=seed)) for seed in range(30))


def test_processes_on_one_directory_break_no_rule(tmp_path: Path) -> None:
    found = run(f"file:{tmp_path}", 1, shared=True)

    assert not found.failures, failure_text(found)
    assert found.events > 300


@pytest.mark.certify
def test_memory_holds_in_the_long_form() -> None:
    found = run("memory:", 500, shared=False)

    assert not found.failures, failure_text(found)


@pytest.mark.certify
def test_processes_on_one_file_directory_hold_in_the_long_form(tmp_path: Path) -> None:
    found = run(f"file:{tmp_path}", 30, shared=True)

    assert not found.failures, failure_text(found)


@pytest.mark.certify
def test_processes_on_one_redis_hold_in_the_long_form(redis_server: RedisServer) -> None:
    found = run(redis_server.url, 30, shared=True)

    assert not found.failures, failure_text(found)


@pytest.mark.certify
def test_processes_on_one_postgres_hold_in_the_long_form(postgres_server: PostgresServer) -> None:
    found = run(postgres_server.url, 30, shared=True)

    assert not found.failures, failure_text(found)
