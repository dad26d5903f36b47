"""Bugs of update-only requests and of releases with a time. The contract's authors named each of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from dibs.model import fold, rules, transitions
from dibs.model.job import Job, Slot, Successor
from dibs.model.requests import Release, Settlement, Update
from dibs.model.results import EnqueueResult
from dibs.storage.indexed import ending, enqueueing
from dibs.storage.indexed.index import Index
from tests.kit.mutants.by_contract import law
from tests.kit.mutants.planting import Patch, changed

NOTHING_CREATED = "an update-only request creates nothing"
END_TOLD = "the end of an update-only request is told"
FOLD = "the fold law: an update-only request does nothing on an empty id"


def only_updates(slot: Slot) -> bool:
    return slot.successor is not None and not slot.successor.creates


# -- update-only requests create nothing ---------------------------------------------------------------


@law(NOTHING_CREATED)
def an_absent_id_gets_a_job(patch: Patch) -> None:
    original = rules.decide_unchanged

    def mutant(slot: Slot, rule: Any, now: int) -> EnqueueResult | None:
        found = original(slot, rule, now)
        return None if found is rules.ABSENT else found

    patch.setattr(rules, "decide_unchanged", mutant)


@law(NOTHING_CREATED)
def a_list_of_updates_alone_is_promoted(patch: Patch) -> None:
    original = transitions.end

    def mutant(slot: Slot, *rest: Any) -> Slot:
        if slot.successor is not None:
            slot = replace(slot, successor=replace(slot.successor, creates=True))
        return original(slot, *rest)

    patch.setattr(transitions, "end", mutant)


@law(NOTHING_CREATED)
def an_absent_request_draws_a_revision(patch: Patch) -> None:
    def change(result: EnqueueResult, index: Index, *_: Any) -> EnqueueResult:
        number = index.next_number()
        return replace(result, first=number, revision=number) if result.status == "absent" else result

    changed(patch, enqueueing, "admit", change)


# -- their end is told ---------------------------------------------------------------------------------


@law(END_TOLD)
def the_outcome_leaves_out_the_updates(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Job, *_: Any) -> Slot:
        if after.outcome is None or not only_updates(slot):
            return after
        return replace(after, outcome=replace(after.outcome, revision=job.revision, enqueues=job.enqueues))

    changed(patch, transitions, "end", change)


@law(END_TOLD)
def the_event_of_an_end_leaves_out_the_updates(patch: Patch) -> None:
    patch.setattr(ending, "fold", SimpleNamespace(joined_range=lambda job, successor: job))  # noqa: ARG005


@law(END_TOLD)
def the_origin_leaves_out_the_updates(patch: Patch) -> None:
    def change(fail_job: Job, queue: str, job: Job, *_: Any) -> Job:
        assert fail_job.origin is not None
        return replace(fail_job, origin=replace(fail_job.origin, revision=job.first))

    changed(patch, transitions, "make_fail_job", change)


@law(END_TOLD)
def dropped_updates_end_with_the_run(patch: Patch) -> None:
    original = transitions.drop_successor

    def mutant(slot: Slot, successor: Successor, now: int) -> Slot:
        if successor.creates or slot.current is None:
            return original(slot, successor, now)
        return replace(slot, current=fold.joined_range(slot.current, successor), successor=None)

    patch.setattr(transitions, "drop_successor", mutant)


# -- the fold law --------------------------------------------------------------------------------------


@law(FOLD)
def the_time_of_an_update_moves_a_new_job(patch: Patch) -> None:
    def change(after: Successor, before: Successor, *_: Any) -> Successor:
        if before.creates or not after.creates:
            return after
        return replace(after, run_at=fold.clamp(after.run_at, before.lo, before.hi))

    changed(patch, fold, "add_update", change)


@law("the fold law: a run that comes back is clamped")
def the_time_of_an_update_is_lost_at_a_comeback(patch: Patch) -> None:
    def start(after: Successor, _: Any, rule: Update, *__: Any) -> Successor:
        return after if rule.create else replace(after, lo=None, hi=None)

    def add(after: Successor, before: Successor, _: Any, rule: Update, *__: Any) -> Successor:
        return after if rule.create else replace(after, lo=before.lo, hi=before.hi)

    changed(patch, fold, "start_successor", start)
    changed(patch, fold, "add_update", add)


@law(FOLD)
def the_first_update_gives_the_seq(patch: Patch) -> None:
    def change(after: Successor, before: Successor, *_: Any) -> Successor:
        return after if before.creates or not after.creates else replace(after, seq=after.first)

    changed(patch, fold, "add_update", change)


# -- releases with a time ------------------------------------------------------------------------------


def released(patch: Patch, change: Any) -> None:
    """Patch releases with a time: `change` gets the job after the release, and the job before it."""
    original = transitions.release

    def mutant(slot: Slot, job: Job, run_at: int | None = None, seq: int | None = None) -> Slot:
        after = original(slot, job, run_at, seq)
        return after if run_at is None else replace(after, current=change(after.current, job))

    patch.setattr(transitions, "release", mutant)


@law("a release leaves no count")
def a_release_with_a_time_counts_a_retry(patch: Patch) -> None:
    released(patch, lambda after, job: replace(after, retries=job.retries + 1))


@law("a release leaves no count")
def a_release_with_a_time_keeps_its_attempt(patch: Patch) -> None:
    released(patch, lambda after, job: replace(after, attempts=job.attempts))


@law("a release waits as told")
def a_release_with_a_time_keeps_its_seq(patch: Patch) -> None:
    released(patch, lambda after, job: replace(after, seq=job.seq))


@law("a release waits as told")
def a_release_with_a_time_keeps_its_time(patch: Patch) -> None:
    released(patch, lambda after, job: replace(after, run_at=job.run_at))


@law("a run being cancelled does not return")
def a_run_being_cancelled_is_released_until_a_time(patch: Patch) -> None:
    original = rules.decide_settle

    def mutant(slot: Slot, one: Settlement, limits: Any) -> Any:
        timed = isinstance(one.action, Release) and one.action != Release()
        job = slot.current
        if timed and job is not None and job.run is not None and job.run.cancel_requested:
            slot = replace(slot, current=replace(job, run=replace(job.run, cancel_requested=False)))
        return original(slot, one, limits)

    patch.setattr(rules, "decide_settle", mutant)
