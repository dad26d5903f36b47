"""Bugs in the engine that were derived from the contract: each breaks one of its sentences."""
# ruff: noqa: ARG005 - a mutant has the arguments of the original and uses fewer of them

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from dibs.model import events, fold, rules, transitions
from dibs.model.error_text import to_storable_error
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.requests import EnqueueRequest, Reject, Release, RetryLater, Settlement, Update
from dibs.model.results import ClaimResult, EnqueueResult, SettleResult
from dibs.storage.indexed import by_id, claiming, enqueueing, index, reading, settling
from dibs.storage.indexed.event_log import Entry, EventLog, pack_entry
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.planting import Patch, Plant, breaks, changed


def law(sentence: str, examples: int = 300, survives: str = "") -> Callable[[Plant], Plant]:
    return breaks(sentence, examples, by_contract=True, survives=survives)


# -- 1. What exists ----------------------------------------------------------------------------------


@law("revisions grow")
def a_failed_job_comes_back_under_its_old_revision(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, outcome: Any, *_: Any) -> Slot:
        assert after.current is not None
        job = replace(after.current, first=outcome.first, revision=outcome.revision)
        return replace(after, current=job)

    changed(patch, transitions, "retry_failed", change)


@law("offsets only grow")
def steps_of_one_moment_share_an_offset(patch: Patch) -> None:
    def mutant(number: int, at: int, events_: list[events.LogEvent]) -> Entry:
        return pack_entry(at * 1000, at, events_)

    patch.setattr(index, "pack_entry", mutant)


@law("seq: promotion keeps the successor's")
def a_promoted_job_goes_to_the_back(patch: Patch) -> None:
    changed(patch, fold, "job_after_end", lambda job, *_: replace(job, seq=job.revision))


@law("seq: update in place keeps it")
def an_update_goes_to_the_back(patch: Patch) -> None:
    changed(patch, transitions, "update", lambda after, *_: replace(after, current=at_the_back(after)))


def at_the_back(slot: Slot) -> Any:
    assert slot.current is not None
    return replace(slot.current, seq=slot.current.revision)


@law("a job carries the number of the enqueues folded into it")
def an_update_in_place_is_not_counted(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Any, *_: Any) -> Slot:
        assert after.current is not None
        return replace(after, current=replace(after.current, enqueues=job.enqueues))

    changed(patch, transitions, "update", change)


@law("fences grow")
def a_forget_restarts_the_numbers(patch: Patch) -> None:
    original = by_id.forget

    def mutant(index: Index, queue: str, ids: list[str]) -> list[bool]:
        known = original(index, queue, ids)
        index.number = 0
        return known

    patch.setattr(by_id, "forget", mutant)


# -- 3. Transitions: enqueue --------------------------------------------------------------------------


@law("Reject: an id that failed may come in again")
def a_reject_stops_at_a_failure(patch: Patch) -> None:
    original = rules._decide_reject
    patch.setattr(rules, "_decide_reject", lambda slot, how, now: original(slot, Reject(failed=True), now))


@law("an expired outcome is absent to every verb: enqueue")
def a_reject_sees_an_expired_outcome(patch: Patch) -> None:
    original = rules._decide_reject
    patch.setattr(rules, "_decide_reject", lambda slot, how, now: original(slot, how, 0))


@law("Update(data=False) replaces none of them")
def attributes_are_always_replaced(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Any, new: Any, *_: Any) -> Slot:
        assert after.current is not None
        data = replace(after.current.data, attributes=new.data.attributes)
        return replace(after, current=replace(after.current, data=data))

    changed(patch, transitions, "update", change)


@law("reset_counts: the same as data")
def every_update_resets_the_counts(patch: Patch) -> None:
    patch.setattr(Update, "resets", property(lambda self: self.reset_counts is not False))


@law("run_at: later takes the later of both")
def later_is_earlier(patch: Patch) -> None:
    original = fold.move_run_at
    swapped: dict[str, Any] = {"later": "earlier", "earlier": "later", "always": "always", "never": "never"}
    patch.setattr(fold, "move_run_at", lambda old, rule, new: original(old, swapped[rule], new))


@law("a request_key: a repeat is marked as repeated")
def a_repeat_is_not_marked(patch: Patch) -> None:
    changed(patch, enqueueing, "_enqueue_request", lambda answer, *_: replace(answer, repeated=False))


@law("a request_key acts once")
def a_repeat_is_about_the_id_of_its_request(patch: Patch) -> None:
    def change(answer: EnqueueResult, index: Index, queue: QueueIndex, request: EnqueueRequest) -> Any:
        return replace(answer, id=request.job.id if answer.repeated else "")

    changed(patch, enqueueing, "_enqueue_request", change)


@law("payload: opaque bytes, no storage looks inside")
def payloads_are_reformatted(patch: Patch) -> None:
    original = rules.apply_update

    def mutant(slot: Slot, new: Any, *rest: Any) -> Any:
        with suppress(ValueError):
            tidy = json.dumps(json.loads(new.data.payload)).encode()
            new = replace(new, data=replace(new.data, payload=tidy))
        return original(slot, new, *rest)

    patch.setattr(rules, "apply_update", mutant)


# -- claim and leases ----------------------------------------------------------------------------------


@law("claim: next_due, the earliest run_at later than now")
def next_due_is_always_none(patch: Patch) -> None:
    changed(patch, claiming, "claim", lambda answer, *_: replace(answer, next_due=None))


@law("claim: next_due is None while paused")
def a_paused_queue_returns_next_due(patch: Patch) -> None:
    def change(answer: ClaimResult, index: Index, queue: str, *_: Any) -> ClaimResult:
        source = index.find_queue(queue)
        return replace(answer, next_due=source.next_due()) if source.settings.paused else answer

    changed(patch, claiming, "claim", change)


@law("max_active is exact: a handed-off job is not counted")
def handed_off_jobs_count_for_max_active(patch: Patch) -> None:
    def mutant(self: QueueIndex) -> int | None:
        most = self.settings.max_active
        return None if most is None else max(0, most - self.active)

    patch.setattr(QueueIndex, "headroom", property(mutant))


@law("renew: returns the ids with a requested cancellation")
def renew_hides_requested_cancellations(patch: Patch) -> None:
    changed(patch, claiming, "_renew", lambda answer, *_: replace(answer, cancel_requested=()))


@law("drop: releases, no stall counted")
def a_dropped_job_counts_a_stall(patch: Patch) -> None:
    original = settling.return_job
    patch.setattr(
        settling, "return_job", lambda index, queue, id, *, stalled: original(index, queue, id, stalled=True)
    )


@law("reap: comes back as waiting at now")
def a_reaped_job_keeps_its_time(patch: Patch) -> None:
    original = rules.decide_action_without_lease

    def mutant(job: Any, *, stalled: bool) -> Any:
        how, kind = original(job, stalled=stalled)
        return (replace(how, run_at=job.run_at) if isinstance(how, RetryLater) else how), kind

    patch.setattr(rules, "decide_action_without_lease", mutant)


@law("reap: up to `limit` jobs")
def a_reap_takes_one_more(patch: Patch) -> None:
    original = claiming.reap
    patch.setattr(claiming, "reap", lambda index, queue, limit: original(index, queue, limit + 1))


# -- settle and finish ---------------------------------------------------------------------------------


@law("settle: a return on a cancelled outcome answers cancelled")
def a_return_after_a_cancellation_is_lost(patch: Patch) -> None:
    original = rules.settle_from_outcome

    def mutant(outcome: Any, one: Settlement) -> SettleResult:
        answer = original(outcome, one)
        return rules.LOST if answer.status == "cancelled" else answer

    patch.setattr(rules, "settle_from_outcome", mutant)


@law("RetryLater: the last error is kept")
def a_retry_without_an_error_clears_the_last_error(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, *rest: Any) -> Slot:
        assert after.current is not None
        return after if slot.successor else replace(after, current=replace(after.current, error=rest[-1]))

    changed(patch, transitions, "retry", change)


@law("Fail(then=[]): every follow-up is enqueued in the same step")
def only_the_first_follow_up_is_enqueued(patch: Patch) -> None:
    original = enqueueing.enqueue_follow_ups
    patch.setattr(settling, "enqueue_follow_ups", lambda index, then: original(index, then[:1]))


@law("the fail queue: a failed fail job is kept for ever")
def a_failed_fail_job_is_kept_like_any_other(patch: Patch) -> None:
    def mutant(queue: QueueIndex, how: Any) -> Any:
        return how if how.error is None else replace(how, error=to_storable_error(how.error))

    patch.setattr(settling, "_to_storable_end", mutant)


@law("finish: a revision in the outcome's range is done or lost")
def finish_ignores_the_outcome(patch: Patch) -> None:
    original = rules.decide_finish
    patch.setattr(
        rules,
        "decide_finish",
        lambda slot, how, revision: original(replace(slot, outcome=None), how, revision),
    )


@law("finish: under a lease -> refused")
def finish_takes_a_run_from_its_holder(patch: Patch) -> None:
    def change(answer: Any, slot: Slot, *_: Any) -> Any:
        runs = slot.current is not None and slot.current.run is not None
        return None if answer == "refused" and runs else answer

    changed(patch, rules, "decide_finish", change)


@law("Retention: for completed, failed and cancelled separately")
def every_end_is_kept_as_long_as_a_completed_one(patch: Patch) -> None:
    original = transitions.outcome_expiry
    patch.setattr(transitions, "outcome_expiry", lambda kind, now, *rest: original("completed", now, *rest))


# -- by id ---------------------------------------------------------------------------------------------


@law("cancel: a handed-off current is ended as cancelled at once")
def a_handed_off_run_is_not_cancelled_at_once(patch: Patch) -> None:
    original: Any = vars(by_id)["ask_to_end"]

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Any, run: Any) -> None:
        original(index, queue, slot, job, replace(run, lease=run.lease or "x"))

    patch.setattr(by_id, "ask_to_end", mutant)


@law("amend: an outcome's expiry counts from now")
def an_amended_expiry_counts_from_the_end(patch: Patch) -> None:
    original = transitions._change_outcome_retention
    patch.setattr(
        transitions,
        "_change_outcome_retention",
        lambda outcome, retention, now: original(outcome, retention, outcome.ended_at),
    )


@law("amend: without a current job only a patch of attributes and retention is accepted")
def an_outcome_takes_any_patch(patch: Patch) -> None:
    def change(answer: Any, slot: Slot, *_: Any) -> Any:
        return "amended" if slot.current is None and slot.outcome is not None else answer

    changed(patch, rules, "decide_amend", change)


@law("an expired outcome is absent to every verb: retry_failed")
def an_expired_outcome_can_be_retried(patch: Patch) -> None:
    original = rules.decide_retry_failed
    patch.setattr(rules, "decide_retry_failed", lambda slot, now: original(slot, 0))


@law("an expired outcome is absent to every verb: get")
def an_expired_outcome_is_shown(patch: Patch) -> None:
    patch.setattr(rules, "hide_expired_outcome", lambda slot, now: slot)


@law("report: fenced")
def a_late_holder_reports(patch: Patch) -> None:
    original = settling.report

    def mutant(index: Index, queue: str, id: str, fence: int, *reported: Any, **named: Any) -> Any:
        job = index.find_queue(queue).slots.get(id, EMPTY).current
        held = job.run.fence if job is not None and job.run is not None else fence
        return original(index, queue, id, held, *reported, **named)

    patch.setattr(settling, "report", mutant)


# -- queues, moving, the log ---------------------------------------------------------------------------


@law("list: a job that stays in the state appears exactly once")
def a_page_begins_with_the_last_of_the_page_before(patch: Patch) -> None:
    def change(page: Any, *_: Any) -> Any:
        return page if page.after is None or len(page.items) < 2 else replace(page, after=page.items[-2][0])

    changed(patch, reading, "list_", change)


@law("export: whole ids with the successor")
def an_export_leaves_out_successors(patch: Patch) -> None:
    def change(page: Any, *_: Any) -> Any:
        alone = [replace(one, slot=replace(one.slot, successor=None)) for one in page.records]
        return replace(page, records=tuple(alone))

    changed(patch, reading, "export", change)


@law("import_: a handed-off job stays so")
def every_run_arrives_as_waiting(patch: Patch) -> None:
    def change(after: Slot, *_: Any) -> Slot:
        job = after.current
        return after if job is None or job.run is None else transitions.release(after, job)

    changed(patch, rules, "imported_slot", change)


@law("counts match the jobs")
def blocked_jobs_are_not_counted(patch: Patch) -> None:
    changed(patch, reading, "_count_queue", lambda counts, *_: replace(counts, blocked=0))


@law("counts: retrying jobs are due or scheduled")
def only_scheduled_jobs_are_retrying(patch: Patch) -> None:
    changed(
        patch,
        reading,
        "_count_queue",
        lambda counts, *_: replace(counts, retrying=min(counts.retrying, counts.scheduled)),
    )


@law("counts: a job of which only stalls is above 0 is retrying")
def a_stalled_job_is_not_retrying(patch: Patch) -> None:
    patch.setattr(
        Job, "is_retrying", property(lambda self: self.run is None and self.retries + self.timeouts > 0)
    )


@law("one event for each attempt: cancelled also for a waiting job and a dropped successor")
def a_cancel_before_the_run_leaves_no_event(patch: Patch) -> None:
    original = Index.log_event

    def mutant(self: Index, queue: QueueIndex, event: events.LogEvent) -> None:
        if (event.kind, event.attempt) != ("cancelled", 0):
            original(self, queue, event)

    patch.setattr(Index, "log_event", mutant)


@law("events: with the error, enough to rebuild history")
def an_event_has_no_error(patch: Patch) -> None:
    changed(patch, events, "attempt_event", lambda event, *_: replace(event, error=None))


@law("events: a reader of an empty log gets fell_off")
def a_reader_of_an_empty_log_gets_no_fell_off(patch: Patch) -> None:
    original = EventLog.page
    patch.setattr(EventLog, "page", lambda self, after, limit: original(self, after or None, limit))


@law("Release: waiting as before the claim")
def a_release_waits_from_now(patch: Patch) -> None:
    original = settling._apply_action

    def mutant(index: Index, queue: QueueIndex, slot: Slot, how: Any) -> None:
        original(index, queue, slot, how)
        job = queue.slots[slot.current.id].current if slot.current else None
        if isinstance(how, Release) and job is not None and slot.successor is None:
            queue.put(job.id, replace(queue.slots[job.id], current=replace(job, run_at=index.now)))

    patch.setattr(settling, "_apply_action", mutant)
