"""Bugs of fail handlers, results in the log, attributes of outcomes, reasons and reports.

The contract's authors named each of them.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import events, transitions
from dibs.model.job import FAIL_SUFFIX, NO_ATTRIBUTES, Job, JobData, Outcome, Slot
from dibs.model.requests import Cancelled, Complete, End, Fail, JobPatch
from dibs.model.results import FinishStatus, SettleResult
from dibs.storage.indexed import claiming, settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.by_contract import law
from tests.kit.mutants.planting import Patch, changed

HANDLED = "a failure is handled once"
LOGGED = "a result is in the log as configured"
ATTRIBUTES = "attributes outlive the end"


# -- fail handlers -------------------------------------------------------------------------------------


@law(HANDLED)
def a_finish_forgets_the_fail_handler(patch: Patch) -> None:
    original = settling.finish

    def mutant(index: Index, queue: str, id: str, action: End, revision: int) -> FinishStatus:
        with patch.context() as inner:
            inner.setattr(settling, "_has_fail_handler", lambda _: False)
            return original(index, queue, id, action, revision)

    patch.setattr(settling, "finish", mutant)


@law(HANDLED)
def the_claim_decides_about_the_fail_job(patch: Patch) -> None:
    claimed: dict[tuple[str, int], bool] = {}
    original = settling.end

    def note(answer: Any, index: Index, queue: str, *_: Any) -> Any:
        handler = index.find_queue(queue).settings.fail_handler
        claimed.update(((queue, job.run.fence), handler) for job in answer.jobs)
        return answer

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: End) -> None:
        fence = job.run.fence if job.run is not None else 0
        handler = claimed.get((queue.name, fence), False) and not queue.name.endswith(FAIL_SUFFIX)
        with patch.context() as inner:
            inner.setattr(settling, "_has_fail_handler", lambda _: handler)
            original(index, queue, slot, job, action)

    changed(patch, claiming, "claim", note)
    patch.setattr(settling, "end", mutant)


@law(HANDLED)
def a_repeat_makes_a_second_fail_job(patch: Patch) -> None:
    original = settling._settle

    def mutant(index: Index, queue: QueueIndex, settlement: Any, limits: Any) -> SettleResult:
        before = queue.slots.get(settlement.id)
        answer = original(index, queue, settlement, limits)
        ended = before is None or before.current is None
        if ended and answer.status == "done" and isinstance(settlement.action, Fail):
            job = Job(id=settlement.id, data=JobData(), run_at=0, enqueued_at=0, seq=0, first=0, revision=0)
            if settling._has_fail_handler(queue):
                settling._enqueue_fail_job(index, queue, job, settlement.action.error)
        return answer

    patch.setattr(settling, "_settle", mutant)


@law(HANDLED)
def a_fail_queue_gets_a_fail_queue(patch: Patch) -> None:
    patch.setattr(settling, "_has_fail_handler", lambda queue: queue.settings.fail_handler)


@law("cancelled: the outcome and the event have the reason")
def the_reason_of_a_cancellation_is_lost(patch: Patch) -> None:
    original = settling._to_storable_end

    def mutant(queue: QueueIndex, action: Fail | Cancelled) -> Fail | Cancelled:
        action = original(queue, action)
        return replace(action, error=None) if isinstance(action, Cancelled) else action

    patch.setattr(settling, "_to_storable_end", mutant)


# -- results in the log --------------------------------------------------------------------------------


@law(LOGGED)
def a_result_without_retention_is_not_logged(patch: Patch) -> None:
    original = settling.end

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: End) -> None:
        retention = action.retention
        kept = not (isinstance(action, Complete) and retention is not None and retention.completed == 0)
        with patch.context() as inner:
            if not kept:
                inner.setattr(events, "logged_result", lambda *_: None)
            original(index, queue, slot, job, action)

    patch.setattr(settling, "end", mutant)


@law(LOGGED)
def a_long_result_is_cut_in_the_log(patch: Patch) -> None:
    patch.setattr(events, "logged_result", lambda result, most: result[:most] if result and most else None)


@law(LOGGED)
def results_are_logged_at_zero(patch: Patch) -> None:
    original = settling.end

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: End) -> None:
        settings = queue.settings
        with patch.context() as inner:
            inner.setattr(queue, "settings", replace(settings, log_results=settings.log_results or 4096))
            original(index, queue, slot, job, action)

    patch.setattr(settling, "end", mutant)


# -- attributes of outcomes ----------------------------------------------------------------------------


@law(ATTRIBUTES)
def only_failed_outcomes_keep_attributes(patch: Patch) -> None:
    changed(
        patch, transitions, "make_outcome", lambda outcome, *_: replace(outcome, attributes=NO_ATTRIBUTES)
    )


@law(ATTRIBUTES)
def a_patch_of_an_outcome_is_not_kept(patch: Patch) -> None:
    patch.setattr(transitions, "_change_outcome_attributes", lambda outcome, _: outcome)


@law(ATTRIBUTES)
def a_patch_goes_into_the_outcome_of_a_live_job(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, changes: JobPatch, *_: Any) -> Slot:
        if slot.current is None or after.outcome is None or changes.attributes is UNSET:
            return after
        return replace(after, outcome=transitions._change_outcome_attributes(after.outcome, changes))

    changed(patch, transitions, "amend", change)


@law(ATTRIBUTES)
def a_failed_job_comes_back_without_later_patches(patch: Patch) -> None:
    first: dict[tuple[str, int], Any] = {}
    original = transitions.retry_failed

    def note(outcome: Outcome, job: Job, *_: Any) -> Outcome:
        first[job.id, outcome.fence] = job.data.attributes
        return outcome

    def mutant(slot: Slot, outcome: Outcome, id: str, data: JobData, *rest: Any, **named: Any) -> Slot:
        attributes = first.get((id, outcome.fence), data.attributes)
        return original(slot, outcome, id, replace(data, attributes=attributes), *rest, **named)

    changed(patch, transitions, "make_outcome", note)
    patch.setattr(transitions, "retry_failed", mutant)


# -- progress ------------------------------------------------------------------------------------------


@law("the last progress outlives the end")
def an_end_drops_the_progress(patch: Patch) -> None:
    changed(patch, transitions, "make_outcome", lambda outcome, *_: replace(outcome, progress=None))


@law("Progress is in no log, at any level")
def a_report_adds_an_event(patch: Patch) -> None:
    def change(answer: str, index: Index, queue: str, id: str, *_: Any) -> str:
        source = index.find_queue(queue)
        job = source.slots[id].current if answer == "reported" else None
        if job is not None and source.settings.log_level == "all":
            index.log_event(source, events.note_event("claimed", id, index.now, job))
        return answer

    changed(patch, settling, "report", change)
