"""Bugs in the engine: each patches one function that memory and file share."""
# ruff: noqa: ARG005 - a mutant has the arguments of the original and uses fewer of them

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import events, fold, rules, transitions
from dibs.model.job import EMPTY, JobData, Slot
from dibs.model.overrides import Overrides
from dibs.model.requests import JobPatch
from dibs.model.results import ExportRecord, SettleResult
from dibs.storage.indexed import by_id, claiming, reading, settling, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.orders import SortedIds
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import Lease
from tests.kit.mutants.planting import Patch, breaks, changed


@breaks("one active run")
def an_enqueue_during_a_run_is_queued_at_once(patch: Patch) -> None:
    patch.setattr(
        transitions,
        "block",
        lambda slot, new, how, now, number: transitions.enqueue_first(slot, new, now, number),
    )


@breaks("fences grow")
def the_fence_is_the_time(patch: Patch) -> None:
    original = transitions.claim
    patch.setattr(
        transitions,
        "claim",
        lambda job, fence, lease, holder, now: original(job, now * 1000, lease, holder, now),
    )


@breaks("fences grow")
def the_fence_is_a_small_counter(patch: Patch) -> None:
    def mutant(self: Index) -> int:
        self.number += 1
        return self.number

    patch.setattr(Index, "next_number", mutant)


@breaks("a late holder is refused")
def settle_ignores_the_fence(patch: Patch) -> None:
    original = rules.decide_settle

    def mutant(slot: Slot, one: Any, limits: Any) -> Any:
        job = slot.current
        if job is not None and job.run is not None:
            one = replace(one, fence=job.run.fence)
        return original(slot, one, limits)

    patch.setattr(rules, "decide_settle", mutant)


@breaks("a run ends once")
def every_repeat_is_done(patch: Patch) -> None:
    patch.setattr(rules, "settle_from_outcome", lambda outcome, one: SettleResult("done"))


@breaks("claims follow the order")
def the_least_urgent_first(patch: Patch) -> None:
    def mutant(self: QueueIndex) -> Any:
        while self.due:
            last = max(self.due)
            self.due.replace_all([entry for entry in self.due if entry != last])
            if self._find_claimable(last):
                return self.slots[last[4]]
        return None

    patch.setattr(QueueIndex, "pop_due", mutant)


@breaks("claims follow the order: seq is the place in line, and a job that is tried again goes to the back")
def a_retry_keeps_its_place(patch: Patch) -> None:
    original = transitions.retry
    patch.setattr(
        transitions,
        "retry",
        lambda slot, job, cause, run_at, seq, error: original(slot, job, cause, run_at, job.seq, error),
    )


@breaks("no claim before run_at")
def a_job_is_due_too_early(patch: Patch) -> None:
    original = QueueIndex.advance
    patch.setattr(QueueIndex, "advance", lambda self, now: original(self, now + 4))


@breaks("accepted jobs are kept")
def an_end_loses_the_successor(patch: Patch) -> None:
    changed(patch, transitions, "end", lambda after, *_: Slot(None, None, after.outcome, after.dropped))


@breaks("a blocked job is not lost")
def a_return_loses_the_successor(patch: Patch) -> None:
    patch.setattr(
        transitions, "_back_to_waiting", lambda slot, back: replace(slot, current=back, successor=None)
    )


@breaks("the last update wins")
def the_first_update_wins(patch: Patch) -> None:
    changed(patch, fold, "add_update", lambda after, successor, *_: replace(after, data=successor.data))


@breaks("the fold law: a run that comes back is clamped")
def a_return_ignores_the_requested_times(patch: Patch) -> None:
    patch.setattr(fold, "clamp", lambda run_at, lo, hi: run_at)


@breaks("the fold law: later after earlier")
def later_forgets_the_upper_end(patch: Patch) -> None:
    original = fold.narrow_clamp
    patch.setattr(
        fold,
        "narrow_clamp",
        lambda lo, hi, rule, at: (
            (at if lo is None else max(lo, at), hi) if rule == "later" else original(lo, hi, rule, at)
        ),
    )


@breaks("Counts: any reset")
def updates_never_reset_the_counts(patch: Patch) -> None:
    patch.setattr(fold, "with_zero_counts", lambda job: job)


@breaks("Release: attempts - 1")
def a_release_counts(patch: Patch) -> None:
    original = transitions.release
    patch.setattr(
        transitions,
        "release",
        lambda slot, job, *when: original(slot, replace(job, attempts=job.attempts + 1), *when),
    )


@breaks("reap: stalls + 1")
def a_reap_counts_no_stall(patch: Patch) -> None:
    original = settling.return_job
    patch.setattr(
        settling, "return_job", lambda index, queue, id, *, stalled: original(index, queue, id, stalled=False)
    )


@breaks("leases end exactly at their expiry")
def a_lease_lives_at_its_end(patch: Patch) -> None:
    patch.setattr(Lease, "alive", lambda self, now: now <= self.expires_at and not self.dropped)


@breaks("leases end exactly at their expiry")
def a_renewal_may_shorten(patch: Patch) -> None:
    patch.setattr(claiming, "max", lambda *ends: ends[-1], raising=False)


@breaks("leases end exactly at their expiry")
def a_dropped_lease_stays_alive(patch: Patch) -> None:
    def mutant(index: Index, queue: QueueIndex, lease_id: str, limit: int) -> int:
        for id in list(queue.held.get(lease_id, ()))[:limit]:
            settling.return_job(index, queue, id, stalled=False)
        return len(queue.held.get(lease_id, ()))

    patch.setattr(claiming, "_drop", mutant)


@breaks("a run being cancelled does not return")
def a_request_to_cancel_is_forgotten(patch: Patch) -> None:
    patch.setattr(transitions, "request_cancel", lambda slot, job, run: slot)


@breaks("a request_key acts once")
def keys_are_not_remembered(patch: Patch) -> None:
    patch.setattr(QueueIndex, "put_key", lambda self, key, after: None)


@breaks("a request_key acts once: within its time")
def keys_are_remembered_for_ever(patch: Patch) -> None:
    original = QueueIndex.put_key
    patch.setattr(
        QueueIndex,
        "put_key",
        lambda self, key, after: original(self, key, after and replace(after, expires_at=2**60)),
    )


@breaks("a failure is handled once")
def the_fail_job_is_not_made(patch: Patch) -> None:
    patch.setattr(settling, "_enqueue_fail_job", lambda *_: None)


@breaks("a failure is handled once")
def the_fail_job_loses_its_payload(patch: Patch) -> None:
    changed(
        patch,
        transitions,
        "make_fail_job",
        lambda job, *_: replace(job, data=replace(job.data, payload=job.data.payload[:1])),
    )


@breaks("a failure is handled once")
def the_fail_job_loses_the_attributes_of_the_failed_job(patch: Patch) -> None:
    changed(
        patch,
        transitions,
        "make_fail_job",
        lambda job, *_: replace(job, origin=replace(job.origin, attributes={})),
    )


@breaks("results are kept unchanged")
def the_result_is_not_kept(patch: Patch) -> None:
    changed(patch, transitions, "make_outcome", lambda outcome, *_: replace(outcome, result=None))


@breaks("one event for each attempt")
def stalls_leave_no_event(patch: Patch) -> None:
    original = Index.log_event
    patch.setattr(
        Index,
        "log_event",
        lambda self, queue, event: None if event.kind == "stalled" else original(self, queue, event),
    )


@breaks("one event for each attempt")
def a_failure_has_two_events(patch: Patch) -> None:
    original = Index.log_event

    def mutant(self: Index, queue: QueueIndex, event: events.LogEvent) -> None:
        original(self, queue, event)
        if event.kind == "failed":
            original(self, queue, event)

    patch.setattr(Index, "log_event", mutant)


@breaks("counts match the jobs")
def scheduled_jobs_are_not_counted(patch: Patch) -> None:
    patch.setattr(QueueIndex, "count_scheduled", lambda self: 0)


@breaks("a paused queue hands out no job")
def pausing_has_no_effect(patch: Patch) -> None:
    changed(patch, whole_queue, "configure", lambda after, *_: after)
    original = QueueIndex.put_settings
    patch.setattr(
        QueueIndex, "put_settings", lambda self, after: original(self, replace(after, paused=False))
    )


@breaks("max_active is exact")
def claims_exceed_max_active_by_one(patch: Patch) -> None:
    def mutant(self: QueueIndex) -> int | None:
        most = self.settings.max_active
        return None if most is None else max(0, most + 1 - (self.active - self.handed_off))

    patch.setattr(QueueIndex, "headroom", property(mutant))


@breaks("a waiter gets the outcome of its own run")
def a_dropped_range_is_not_remembered(patch: Patch) -> None:
    patch.setattr(transitions, "_add_dropped_range", lambda slot, successor, now: slot.dropped)


@breaks("Retention: alive while now < expiry")
def an_outcome_lives_at_its_end(patch: Patch) -> None:
    def mutant(outcome: Any, now: int) -> Any:
        ends = None if outcome is None else outcome.expires_at
        return None if ends is not None and now > ends else outcome

    patch.setattr(transitions, "unexpired", mutant)


@breaks("an end always removes the older outcome, also with a retention of 0")
def an_end_without_retention_leaves_the_older_outcome(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, job: Any, how: Any, now: int, *_: Any) -> Slot:
        ended = after.outcome
        keeps = ended is not None and ended.expires_at is not None and ended.expires_at <= now
        return replace(after, outcome=slot.outcome) if keeps and slot.outcome else after

    changed(patch, transitions, "end", change)


@breaks("Reject: completed, with the outcome")
def a_reject_ignores_outcomes(patch: Patch) -> None:
    original = rules._decide_reject
    patch.setattr(
        rules,
        "_decide_reject",
        lambda slot, how, now: original(slot, how, now) if slot.current is not None else None,
    )


@breaks("import_: counters are raised above the imported numbers")
def an_import_raises_no_counter(patch: Patch) -> None:
    patch.setattr(rules, "numbers_in", lambda slot: [0])


@breaks("import_: counters are raised above the numbers of the whole call first")
def an_import_raises_the_counters_record_by_record(patch: Patch) -> None:
    original = whole_queue.import_

    def mutant(index: Index, queue: str, records: Sequence[ExportRecord]) -> Any:
        return [original(index, queue, [record])[0] for record in records]

    patch.setattr(whole_queue, "import_", mutant)


@breaks("amend: into current and successor")
def an_amend_misses_the_successor(patch: Patch) -> None:
    changed(patch, transitions, "amend", lambda after, slot, *_: replace(after, successor=slot.successor))


@breaks("amend: a new lease keeps the other overrides")
def an_amended_lease_removes_the_other_overrides(patch: Patch) -> None:
    original = transitions._amend_data

    def mutant(data: JobData, changes: JobPatch) -> JobData:
        amended, lease = original(data, changes), changes.lease
        return amended if lease is UNSET else replace(amended, overrides=Overrides(lease=lease))

    patch.setattr(transitions, "_amend_data", mutant)


@breaks("amend: a lease is changed on a waiting job only")
def the_lease_of_a_run_can_be_amended(patch: Patch) -> None:
    patch.setattr(rules, "FIELDS_WHILE_WAITING", rules.FIELDS_WHILE_WAITING - {"lease"})


@breaks("retry_failed: counts 0, the rest as kept")
def a_failed_job_comes_back_without_its_attributes(patch: Patch) -> None:
    original = transitions.retry_failed
    patch.setattr(
        transitions,
        "retry_failed",
        lambda slot, outcome, id, data, *rest, **more: original(
            slot, outcome, id, replace(data, attributes={}, priority=0), *rest, **more
        ),
    )


@breaks("retry_failed: the delay is the time until the job is due, and nothing else")
def a_delayed_retry_begins_at_once(patch: Patch) -> None:
    original = transitions.retry_failed
    patch.setattr(transitions, "retry_failed", lambda *given, delay: original(*given, delay=0))


@breaks("retry_failed: the delay is the time until the job is due, and nothing else")
def a_delayed_retry_is_enqueued_later(patch: Patch) -> None:
    original = transitions.retry_failed

    def mutant(*given: Any, **named: Any) -> Slot:
        after = original(*given, **named)
        assert after.current is not None
        return replace(after, current=replace(after.current, enqueued_at=after.current.run_at))

    patch.setattr(transitions, "retry_failed", mutant)


@breaks("retry_failed: a live job is unchanged")
def a_repeated_retry_moves_the_job(patch: Patch) -> None:
    original = by_id._retry_failed

    def mutant(index: Any, queue: Any, id: str, delay: int) -> Any:
        slot = queue.slots.get(id)
        answer = original(index, queue, id, delay)
        if answer == "live" and delay and slot.current.run is None:
            queue.put(id, replace(slot, current=replace(slot.current, run_at=index.now + delay)))
        return answer

    patch.setattr(by_id, "_retry_failed", mutant)


@breaks("HandOff: a handed-off run can only end")
def a_handed_off_run_may_return(patch: Patch) -> None:
    original = rules.decide_settle

    def mutant(slot: Slot, one: Any, limits: Any) -> Any:
        verdict = original(slot, one, limits)
        return one.action if isinstance(verdict, SettleResult) and "only end" in verdict.reason else verdict

    patch.setattr(rules, "decide_settle", mutant)


@breaks("split: a part goes up to the next cursor")
def a_part_goes_on_to_the_end(patch: Patch) -> None:
    original = reading.export

    def mutant(index: Index, queue: str, after: str | None, until: str | None, limit: int) -> Any:
        return original(index, queue, after, None, limit)

    patch.setattr(reading, "export", mutant)


@breaks("split: a job is in exactly one part")
def a_part_ends_before_its_cursor(patch: Patch) -> None:
    original = SortedIds.ids_after

    def mutant(listing: SortedIds, id: str | None, until: str | None = None) -> Any:
        return (found for found in original(listing, id, until) if found != until)

    patch.setattr(SortedIds, "ids_after", mutant)


@breaks("export: each exported id has a job or an outcome")
def an_export_has_ids_with_only_an_expired_outcome(patch: Patch) -> None:
    original = reading.export

    def mutant(index: Index, queue: str, after: str | None, until: str | None, limit: int) -> Any:
        page, source = original(index, queue, after, until, limit), index.find_queue(queue)
        slots = ((id, source.slots[id]) for id in source.listing.ids_after(after, until))
        expired = [
            ExportRecord(id=id, slot=EMPTY)
            for id, slot in slots
            if rules.hide_expired_outcome(slot, index.now) is EMPTY
        ]
        return replace(page, records=(*page.records, *expired)[:limit])

    patch.setattr(reading, "export", mutant)


@breaks("prune: the answer has `more` if the limit ended the call")
def a_prune_does_not_say_that_it_left_request_keys(patch: Patch) -> None:
    changed(
        patch,
        whole_queue,
        "prune",
        lambda answer, _index, _queue, limit: replace(answer, more=answer.outcomes == limit),
    )
