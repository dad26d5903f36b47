"""Bugs of signals and parked jobs: in the code that memory and file share, in the Lua and in the SQL.

The text that added parked jobs to the contract named most of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dibs.errors import BatchRefused, Refused
from dibs.model import fold, rules, transitions
from dibs.model.job import NO_ATTRIBUTES, Job, NewJob, Slot
from dibs.model.requests import JobPatch, Release, Update
from dibs.model.results import EnqueueResult
from dibs.storage.indexed import enqueueing, settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants import lua, sql
from tests.kit.mutants.by_contract import law
from tests.kit.mutants.planting import Mutant, Patch, add, changed

NOT_LOST = "no wake is lost"
ONLY_PARKED = "a wake moves only a parked job"
AS_TOLD = "a park leaves no count, and waits as told"
ENDS = "parking ends"
HANDED_OVER = "a signal is handed over"
FULL = "`full` changes no id"
WAKES = "a wake ends a wait for work"


def updated(patch: Patch, change: Callable[[Job, Job, NewJob, Update, int], Job]) -> None:
    """Patch updates in place: `change` gets the job after and before, the request, its rule, and the time."""

    def changed_update(after: Slot, _: Slot, job: Job, new: NewJob, rule: Update, now: int, *__: Any) -> Slot:
        assert after.current is not None
        return replace(after, current=change(after.current, job, new, rule, now))

    changed(patch, transitions, "update", changed_update)


def released(patch: Patch, change: Callable[[Slot, Slot, Job, Release], Slot]) -> None:
    """Patch releases: `change` gets the slot after and before, the job, and the action."""
    changed(
        patch,
        transitions,
        "release_by",
        lambda after, slot, job, action, *_: change(after, slot, job, action),
    )


def parked(patch: Patch, change: Callable[[Job, Job], Job]) -> None:
    """Patch releases that park a job: `change` gets the job after and before."""

    def change_slot(after: Slot, _: Slot, job: Job, action: Release) -> Slot:
        assert after.current is not None
        return replace(after, current=change(after.current, job)) if action.parked else after

    released(patch, change_slot)


# -- no wake is lost --------------------------------------------------------------------------------------


@law(NOT_LOST)
def a_wake_during_the_run_is_lost(patch: Patch) -> None:
    patch.setattr(transitions, "_was_blocked", lambda *_: False)


@law(NOT_LOST)
def a_cancel_that_drops_the_successor_drops_the_wake(patch: Patch) -> None:
    patch.setattr(transitions, "_was_blocked", lambda slot, _: slot.successor is not None)


@law(NOT_LOST)
def a_wake_of_a_parked_job_keeps_its_time(patch: Patch) -> None:
    updated(
        patch,
        lambda after, before, _, rule, __: (
            replace(after, run_at=before.run_at) if woken(before, rule) else after
        ),
    )


def woken(job: Job, rule: Update) -> bool:
    return job.is_parked and rule.run_at == "wake"


@law(NOT_LOST)
def a_woken_job_keeps_the_seq_0(patch: Patch) -> None:
    updated(patch, lambda after, before, _, rule, __: replace(after, seq=0) if woken(before, rule) else after)


@law(NOT_LOST)
def a_job_that_is_not_parked_keeps_the_end_of_its_wait(patch: Patch) -> None:
    def change(after: Slot, _: Slot, __: Job, action: Release) -> Slot:
        job = after.current
        assert job is not None
        late = action.parked and job.seq and action.run_at is not None and action.run_at > job.run_at
        return replace(after, current=replace(job, run_at=action.run_at)) if late else after

    released(patch, change)


# -- a wake moves only a parked job -----------------------------------------------------------------------


@law(ONLY_PARKED)
def a_wake_starts_a_scheduled_job(patch: Patch) -> None:
    def change(after: Job, _: Job, __: NewJob, rule: Update, now: int) -> Job:
        return replace(after, run_at=min(after.run_at, now)) if rule.run_at == "wake" else after

    updated(patch, change)


@law(ONLY_PARKED)
def a_wake_ends_a_backoff(patch: Patch) -> None:
    def change(after: Job, before: Job, _: NewJob, rule: Update, now: int) -> Job:
        ends = rule.run_at == "wake" and before.is_retrying
        return replace(after, run_at=min(after.run_at, now)) if ends else after

    updated(patch, change)


@law(ONLY_PARKED)
def a_folded_wake_ends_a_backoff(patch: Patch) -> None:
    original = fold.narrow_clamp
    patch.setattr(
        fold, "narrow_clamp",
        lambda lo, hi, rule, at: original(lo, hi, "earlier" if rule == "wake" else rule, at),
    )  # fmt: skip


@law(ONLY_PARKED)
def a_wake_of_a_due_job_moves_it_back(patch: Patch) -> None:
    updated(
        patch,
        lambda after, before, _, rule, now: replace(after, run_at=now) if woken(before, rule) else after,
    )


# -- a park leaves no count, and waits as told ------------------------------------------------------------


@law(AS_TOLD)
def a_parked_job_keeps_its_attempt(patch: Patch) -> None:
    parked(patch, lambda after, before: replace(after, attempts=before.attempts))


@law(AS_TOLD)
def a_park_counts_a_retry(patch: Patch) -> None:
    parked(patch, lambda after, _: replace(after, retries=after.retries + 1))


@law(AS_TOLD)
def a_parked_job_keeps_its_time(patch: Patch) -> None:
    parked(patch, lambda after, before: replace(after, run_at=before.run_at))


@law(AS_TOLD)
def a_run_parks_although_an_update_came(patch: Patch) -> None:
    def mutant(slot: Slot, _: Job) -> bool:
        return slot.successor is not None and not slot.successor.creates

    patch.setattr(transitions, "_was_blocked", mutant)


@law("settle: a release with `parked` has a time")
def a_park_without_a_time_is_accepted(patch: Patch) -> None:
    original = rules.decide_settle

    def mutant(slot: Slot, settlement: Any, limits: Any) -> Any:
        action = settlement.action
        if action == Release(parked=True):
            settlement = replace(settlement, action=Release())
        return original(slot, settlement, limits)

    patch.setattr(rules, "decide_settle", mutant)


# -- parking ends -----------------------------------------------------------------------------------------


@law(ENDS)
def an_updated_job_stays_parked(patch: Patch) -> None:
    def change(after: Job, before: Job, _: NewJob, rule: Update, __: int) -> Job:
        return replace(after, seq=0) if before.is_parked and rule.run_at != "wake" else after

    updated(patch, change)


@law(ENDS)
def an_update_that_keeps_the_time_ends_the_parking(patch: Patch) -> None:
    updated(
        patch, lambda after, before, *_: replace(after, seq=after.revision) if before.is_parked else after
    )


@law(ENDS)
def an_amend_ends_the_parking(patch: Patch) -> None:
    def change(after: Slot, _: Slot, given: JobPatch, *__: Any) -> Slot:
        job = after.current
        moved = isinstance(given.run_at, int) or isinstance(given.delay, int)
        return (
            replace(after, current=replace(job, seq=job.revision))
            if job and job.is_parked and moved
            else after
        )

    changed(patch, transitions, "amend", change)


@law(ENDS)
def a_plain_release_parks_again(patch: Patch) -> None:
    def change(after: Slot, _: Slot, job: Job, action: Release) -> Slot:
        assert after.current is not None
        again = job.seq == 0 and action.run_at is None and action.delay is None
        return replace(after, current=replace(after.current, seq=0)) if again else after

    released(patch, change)


@law(ENDS)
def a_cancel_of_long_ago_keeps_a_job_from_parking(patch: Patch) -> None:
    patch.setattr(
        transitions, "_was_blocked", lambda slot, _: slot.successor is not None or bool(slot.dropped)
    )


# -- a signal is handed over ------------------------------------------------------------------------------


def merged(patch: Patch, merge: Callable[[Slot, NewJob, int], Slot]) -> None:
    """Replace the merge of the attributes of an update-only request."""
    original = rules.apply_update

    def mutant(slot: Slot, new: NewJob, rule: Update, now: int, number: int) -> Any:
        if not rule.create and new.data.attributes:
            slot = merge(slot, new, now)
            new = replace(new, data=replace(new.data, attributes=NO_ATTRIBUTES))
        return original(slot, new, rule, now, number)

    patch.setattr(rules, "apply_update", mutant)


def amended(slot: Slot, new: NewJob, now: int) -> Slot:
    return transitions.amend(slot, JobPatch(attributes=new.data.attributes), now)


@law(HANDED_OVER)
def a_signal_of_a_run_is_lost(patch: Patch) -> None:
    merged(
        patch,
        lambda slot, new, now: amended(slot, new, now) if slot.current and not slot.current.run else slot,
    )


@law(HANDED_OVER)
def a_signal_of_a_waiting_job_is_lost(patch: Patch) -> None:
    merged(
        patch, lambda slot, new, now: amended(slot, new, now) if slot.current and slot.current.run else slot
    )


@law(HANDED_OVER)
def the_successor_misses_the_signal(patch: Patch) -> None:
    merged(
        patch,
        lambda slot, new, now: replace(
            amended(replace(slot, successor=None), new, now), successor=slot.successor
        ),
    )


@law(HANDED_OVER)
def a_promoted_job_has_the_signals_of_the_run_before(patch: Patch) -> None:
    original = transitions.block

    def mutant(slot: Slot, new: NewJob, rule: Update, now: int, number: int) -> Slot:
        if rule.create and slot.successor is not None and not slot.successor.creates and slot.current:
            attributes = {**slot.current.data.attributes, **new.data.attributes}
            new = replace(new, data=replace(new.data, attributes=attributes))
        return original(slot, new, rule, now, number)

    patch.setattr(transitions, "block", mutant)


@law(HANDED_OVER)
def a_signal_replaces_the_signals_before_it(patch: Patch) -> None:
    def merge(slot: Slot, new: NewJob, _: int) -> Slot:
        job = slot.current
        assert job is not None
        data = replace(job.data, attributes=dict(new.data.attributes))
        return replace(slot, current=replace(job, data=data))

    merged(patch, merge)


@law(HANDED_OVER)
def a_moved_job_is_parked_no_longer(patch: Patch) -> None:
    def change(after: Slot, *_: Any) -> Slot:
        job = after.current
        return replace(after, current=replace(job, seq=job.revision)) if job and job.is_parked else after

    changed(patch, rules, "imported_slot", change)


@law("import: an active job arrives as if released, and has a seq")
def a_moved_run_arrives_parked(patch: Patch) -> None:
    def change(after: Slot, slot: Slot, *_: Any) -> Slot:
        job, before = after.current, slot.current
        again = job is not None and before is not None and before.run is not None and before.seq == 0
        return replace(after, current=replace(job, seq=0)) if again and job and job.run is None else after

    changed(patch, rules, "imported_slot", change)


# -- full -------------------------------------------------------------------------------------------------


def no_room(patch: Patch, answer: Callable[[EnqueueResult], EnqueueResult | None]) -> None:
    changed(patch, rules, "decide_attributes", lambda full, *_: full and answer(full))


@law(FULL)
def attributes_grow_beyond_their_limit(patch: Patch) -> None:
    no_room(patch, lambda _: None)


@law(FULL)
def a_signal_without_room_still_wakes(patch: Patch) -> None:
    original = rules.apply_update

    def mutant(slot: Slot, new: NewJob, rule: Update, now: int, number: int) -> Any:
        if rules_decide(slot, new, rule) is not None:
            new = replace(new, data=replace(new.data, attributes=NO_ATTRIBUTES))
        return original(slot, new, rule, now, number)

    rules_decide = rules.decide_attributes
    no_room(patch, lambda _: None)
    patch.setattr(rules, "apply_update", mutant)


@law(FULL)
def a_signal_without_room_draws_a_revision(patch: Patch) -> None:
    def change(result: EnqueueResult, index: Index, *_: Any) -> EnqueueResult:
        drawn = index.next_number() if result.status == "full" and result.found != "nothing" else 0
        return replace(result, first=drawn, revision=drawn) if drawn else result

    changed(patch, enqueueing, "admit", change)


@law(FULL)
def a_signal_without_room_refuses_its_batch(patch: Patch) -> None:
    def change(result: EnqueueResult, *_: Any) -> EnqueueResult:
        if result.status == "full" and result.found != "nothing":
            raise BatchRefused("refused", [Refused("too large", field="attributes")])
        return result

    changed(patch, enqueueing, "admit", change)


@law(FULL)
def only_the_room_of_the_current_counts(patch: Patch) -> None:
    original = rules.decide_attributes
    patch.setattr(
        rules, "decide_attributes",
        lambda slot, new, rule: original(replace(slot, successor=None), new, rule),
    )  # fmt: skip


@law(FULL)
def a_signal_without_room_is_remembered(patch: Patch) -> None:
    patch.setattr(rules, "STOPPED", frozenset({"dropped"}))


# -- a wake ends a wait for work --------------------------------------------------------------------------


@law(WAKES)
def a_release_that_parks_no_job_ends_no_wait(patch: Patch) -> None:
    original: Any = vars(settling)["_release"]

    def mutant(index: Index, queue: QueueIndex, slot: Slot, job: Job, action: Release) -> None:
        version = queue.work_version
        original(index, queue, slot, job, action)
        if action.parked:
            queue.work_version = version

    patch.setattr(settling, "_release", mutant)


# -- in the Lua and in the SQL ----------------------------------------------------------------------------

#: By name: the rule that the bug breaks, the file, the line, and its replacement.
LUA: dict[str, tuple[str, str, str, str]] = {
    "lua_a_wake_during_the_run_is_lost": (
        NOT_LOST,
        "include/outcomes",
        "if parks and was_blocked(queue, job) then parks, run_at = false, queue.now end",
        "",
    ),
    "lua_a_cancel_that_drops_the_successor_drops_the_wake": (
        NOT_LOST,
        "include/outcomes",
        "return #dropped > 0 and unpack_from('>I8', dropped, #dropped - 7) > job.fence",
        "return false",
    ),
    "lua_a_cancel_of_long_ago_keeps_a_job_from_parking": (
        ENDS,
        "include/outcomes",
        "return #dropped > 0 and unpack_from('>I8', dropped, #dropped - 7) > job.fence",
        "return #dropped > 0",
    ),
    "lua_a_plain_release_parks_again": (
        ENDS,
        "include/outcomes",
        "elseif run_at or job.seq == 0 then",
        "elseif run_at then",
    ),
    "lua_a_moved_run_arrives_parked": (
        ENDS,
        "import",
        "    if job.seq == 0 then job.seq = next_number(queue) end\n",
        "",
    ),
    "lua_a_woken_job_keeps_the_seq_0": (
        NOT_LOST,
        "include/accept",
        "if rule ~= NEVER then job.seq = number end",
        "if rule ~= NEVER and not request.wakes then job.seq = number end",
    ),
    "lua_an_updated_job_keeps_its_place_among_the_parked": (
        ENDS,
        "include/accept",
        " and job.seq == before.seq\n",
        "\n",
    ),
    "lua_a_wake_starts_a_scheduled_job": (
        ONLY_PARKED,
        "include/accept",
        "  if job.seq == 0 then\n    if request.wakes then rule = EARLIER end\n",
        "  if request.wakes then rule = EARLIER end\n  if job.seq == 0 then\n",
    ),
    "lua_a_signal_of_a_run_is_lost": (
        HANDED_OVER,
        "include/accept",
        "    set_field(queue, 'active', job.id, encode_job(job))\n",
        "",
    ),
    "lua_the_successor_misses_the_signal": (
        HANDED_OVER,
        "include/accept",
        "if successor and successor.creates then",
        "if false then",
    ),
    "lua_attributes_grow_beyond_their_limit": (
        FULL,
        "include/accept",
        "local MOST_ATTRIBUTES = 65536",
        "local MOST_ATTRIBUTES = 1048576",
    ),
    "lua_only_the_room_of_the_current_counts": (
        FULL,
        "include/accept",
        " and fits(read_successor(queue, request.id))",
        "",
    ),
}
SQL: dict[str, tuple[str, str, str, str]] = {
    "sql_a_wake_during_the_run_is_lost": (
        NOT_LOST,
        "ends",
        "IF parks AND (folds OR j.dropped[cardinality(j.dropped)] > j.fence) THEN",
        "IF false THEN",
    ),
    "sql_a_cancel_that_drops_the_successor_drops_the_wake": (
        NOT_LOST,
        "ends",
        "IF parks AND (folds OR j.dropped[cardinality(j.dropped)] > j.fence) THEN",
        "IF parks AND folds THEN",
    ),
    "sql_a_cancel_of_long_ago_keeps_a_job_from_parking": (
        ENDS,
        "ends",
        "IF parks AND (folds OR j.dropped[cardinality(j.dropped)] > j.fence) THEN",
        "IF parks AND (folds OR j.dropped IS NOT NULL) THEN",
    ),
    "sql_a_plain_release_parks_again": (
        ENDS,
        "ends",
        "WHEN back_at IS NULL AND seq > 0 THEN seq",
        "WHEN back_at IS NULL THEN seq",
    ),
    "sql_a_woken_job_keeps_the_seq_0": (
        NOT_LOST,
        "enqueue",
        "seq = CASE WHEN wakes OR parked AND",
        "seq = CASE WHEN parked AND",
    ),
    "sql_an_updated_job_stays_parked": (
        ENDS,
        "enqueue",
        "seq = CASE WHEN wakes OR parked AND r.how & 3 <> 1 THEN",
        "seq = CASE WHEN wakes THEN",
    ),
    "sql_a_wake_starts_a_scheduled_job": (
        ONLY_PARKED,
        "enqueue",
        "wakes boolean := parked AND r.how & 256 <> 0;",
        "wakes boolean := r.how & 256 <> 0;",
    ),
    "sql_a_wake_of_a_due_job_moves_it_back": (
        ONLY_PARKED,
        "enqueue",
        "WHEN wakes THEN least(run_at, now_ms)",
        "WHEN wakes THEN now_ms",
    ),
    "sql_a_signal_of_a_run_is_lost": (
        HANDED_OVER,
        "enqueue",
        "        attributes = CASE WHEN r.how & 64 <> 0 THEN j.attributes ELSE attributes END\n",
        "        attributes = attributes\n",
    ),
    "sql_the_successor_misses_the_signal": (
        HANDED_OVER,
        "enqueue",
        "        j.next := s;\n",
        "",
    ),
    "sql_attributes_grow_beyond_their_limit": (
        FULL,
        "enqueue",
        "size_of((j.next).attributes)) > 65536",
        "size_of((j.next).attributes)) > 1048576",
    ),
    "sql_only_the_room_of_the_current_counts": (
        FULL,
        "enqueue",
        "greatest(size_of(j.attributes), size_of((j.next).attributes))",
        "size_of(j.attributes)",
    ),
}

for _name, (_rule, *_line) in LUA.items():
    add(Mutant(_name, "redis", _rule, lua.planted(*_line), by_contract=True))
for _name, (_rule, *_line) in SQL.items():
    add(Mutant(_name, "postgres", _rule, sql.planted(*_line), by_contract=True))
