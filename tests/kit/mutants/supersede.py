"""Bugs of requests that supersede the active run. The contract's authors named each of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dibs.model import rules, transitions
from dibs.model.job import ActiveRun, Job, NewJob, Slot
from dibs.model.requests import DEFAULT_UPDATE, Cancelled, OnConflict, Update
from dibs.model.results import EnqueueResult
from dibs.storage.indexed import enqueueing, settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.by_contract import law
from tests.kit.mutants.planting import Patch, changed

ASKS = "supersede asks the run to end"
NEVER_BACK = "a superseded run never comes back"
OWN_RUN = "a waiter gets its own run"


def asked(patch: Patch, ask: Any) -> None:
    """Replace what a superseding request does to the active run."""
    patch.setattr(enqueueing, "ask_to_end", ask)


# -- supersede asks -------------------------------------------------------------------------------------


@law(ASKS)
def a_superseding_request_asks_nobody(patch: Patch) -> None:
    asked(patch, lambda *_: None)


@law(ASKS)
def a_superseding_request_drops_the_successor_before_it(patch: Patch) -> None:
    original = rules.apply_update

    def mutant(slot: Slot, new: NewJob, rule: Update, now: int, number: int) -> Any:
        if rule.supersede and slot.successor is not None:
            slot = transitions.drop_successor(slot, slot.successor, now)
        return original(slot, new, rule, now, number)

    patch.setattr(rules, "apply_update", mutant)


@law(ASKS)
def a_superseding_request_drops_its_own_successor(patch: Patch) -> None:
    original: Any = vars(enqueueing)["ask_to_end"]

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
        assert slot.successor is not None
        slot = transitions.drop_successor(slot, slot.successor, index.now)
        queue.put(job.id, slot)
        original(index, queue, slot, job, run)

    asked(patch, mutant)


@law(ASKS)
def a_superseding_request_cancels_a_waiting_job(patch: Patch) -> None:
    original = enqueueing.admit

    def mutant(index: Index, queue: QueueIndex, new: NewJob, rule: OnConflict) -> EnqueueResult:
        slot = queue.slots.get(new.id)
        job = None if slot is None else slot.current
        supersedes = isinstance(rule, Update) and rule.supersede
        if supersedes and slot is not None and job is not None and job.run is None:
            settling.end(index, queue, slot, job, Cancelled())
        return original(index, queue, new, rule)

    patch.setattr(enqueueing, "admit", mutant)


@law(ASKS)
def a_superseded_handed_off_run_goes_on(patch: Patch) -> None:
    original: Any = vars(enqueueing)["ask_to_end"]

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
        if run.lease is not None:
            original(index, queue, slot, job, run)

    asked(patch, mutant)


@law(ASKS)
def only_the_first_request_of_a_run_supersedes_it(patch: Patch) -> None:
    original = enqueueing.admit

    def mutant(index: Index, queue: QueueIndex, new: NewJob, rule: OnConflict) -> EnqueueResult:
        slot = queue.slots.get(new.id)
        if isinstance(rule, Update) and slot is not None and slot.successor is not None:
            rule = replace(rule, supersede=False)
        return original(index, queue, new, rule)

    patch.setattr(enqueueing, "admit", mutant)


@law("a rejected request supersedes nothing, and a plain update neither")
def every_update_supersedes(patch: Patch) -> None:
    original = enqueueing.admit

    def mutant(index: Index, queue: QueueIndex, new: NewJob, rule: OnConflict) -> EnqueueResult:
        if rule == DEFAULT_UPDATE:
            rule = Update(supersede=True)
        return original(index, queue, new, rule)

    patch.setattr(enqueueing, "admit", mutant)


@law("supersede: a run that was asked before is asked once")
def a_repeated_supersede_is_logged(patch: Patch) -> None:
    original: Any = vars(enqueueing)["ask_to_end"]

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
        original(index, queue, slot, job, replace(run, cancel_requested=False))

    asked(patch, mutant)


@law("enqueue: the outcome is the one that the id had before")
def a_request_gets_the_outcome_of_the_run_that_it_replaced(patch: Patch) -> None:
    original: Any = vars(enqueueing)["_enqueue_request"]

    def mutant(index: Index, queue: QueueIndex, request: Any) -> EnqueueResult:
        result: EnqueueResult = original(index, queue, request)
        slot = queue.slots.get(request.job.id)
        if not request.want_outcome or result.repeated or slot is None:
            return result
        return replace(result, outcome=transitions.unexpired(slot.outcome, index.now))

    patch.setattr(enqueueing, "_enqueue_request", mutant)


# -- what it replaced never comes back -------------------------------------------------------------------


def forgotten_by(patch: Patch, name: str) -> None:
    """Make a way of a run to come back forget the request to end, if the run has a successor."""
    original = getattr(rules, name)

    def mutant(held: Any, *rest: Any, **named: Any) -> Any:
        job = held.current if isinstance(held, Slot) else held
        if job is not None and job.run is not None and job.run.cancel_requested:
            free = replace(job, run=replace(job.run, cancel_requested=False))
            superseded = not isinstance(held, Slot) or held.successor is not None
            if superseded:
                held = replace(held, current=free) if isinstance(held, Slot) else free
        return original(held, *rest, **named)

    patch.setattr(rules, name, mutant)


@law(NEVER_BACK)
def a_retry_folds_the_new_data_into_the_old_counts(patch: Patch) -> None:
    forgotten_by(patch, "decide_settle")


@law(NEVER_BACK)
def a_superseded_run_is_reaped_to_waiting(patch: Patch) -> None:
    forgotten_by(patch, "decide_action_without_lease")


# -- a waiter gets its own run ----------------------------------------------------------------------------


def replaced_end(patch: Patch, change: Any) -> None:
    """Patch the ends of superseded runs: `change` gets the slot after it, the old job, and the successor."""

    def changed_end(after: Slot, slot: Slot, job: Job, *_: Any) -> Slot:
        superseded = job.run is not None and job.run.cancel_requested and slot.successor is not None
        return change(after, job, slot.successor) if superseded and after.current is not None else after

    changed(patch, transitions, "end", changed_end)


@law(OWN_RUN)
def the_range_of_the_new_enqueue_reads_as_cancelled(patch: Patch) -> None:
    def change(after: Slot, _: Job, successor: Any) -> Slot:
        assert after.outcome is not None
        return replace(after, outcome=replace(after.outcome, revision=successor.revision))

    replaced_end(patch, change)


@law(OWN_RUN)
def the_old_enqueue_waits_for_the_new_run(patch: Patch) -> None:
    def change(after: Slot, job: Job, _: Any) -> Slot:
        assert after.current is not None
        return replace(after, current=replace(after.current, first=job.first))

    replaced_end(patch, change)


# -- still one run ----------------------------------------------------------------------------------------


@law("4.2: a successor starts after the end of the run that it supersedes")
def a_successor_starts_before_the_old_run_has_ended(patch: Patch) -> None:
    original: Any = vars(enqueueing)["ask_to_end"]

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, run: ActiveRun) -> None:
        original(index, queue, slot, job, replace(run, lease=None))

    asked(patch, mutant)
