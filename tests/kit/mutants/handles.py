"""Bugs that need wide calls: batches, limits of 2 to 5, defaults of arguments, and a second handle.

A handle is one storage object; several may be open at the same location. Each bug is planted in the storage
in memory, in front of a correct engine.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from dibs.model import events, rules
from dibs.model.job import Slot
from dibs.model.requests import Cancelled, HandOff
from dibs.storage.indexed import claiming, settling, whole_queue
from dibs.storage.indexed.event_log import EventLog
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.memory import MemoryStorage
from dibs.storage.protocol import LATEST
from tests.kit.mutants.planting import Patch, breaks, changed

# -- batches -----------------------------------------------------------------------------------------


def reversed_per_id(ids: Sequence[str], answers: Sequence[Any]) -> list[Any]:
    """Return the answers, with those of each id in reverse order."""
    places = defaultdict(list)
    for place, id in enumerate(ids):
        places[id].append(place)
    found = list(answers)
    for own in places.values():
        for place, other in zip(own, reversed(own), strict=True):
            found[place] = answers[other]
    return found


def answering(patch: Patch, verb: str, change: Callable[[Sequence[Any], list[Any]], Sequence[Any]]) -> None:
    """Patch a verb of the storage so that its answers pass through `change(items, answers)`."""
    original = getattr(MemoryStorage, verb)

    async def mutant(self: MemoryStorage, queue: str, items: Sequence[Any], **named: Any) -> Any:
        return change(items, await original(self, queue, items, **named))

    patch.setattr(MemoryStorage, verb, mutant)


@breaks("a batch has one result per item, in order: settle")
def settlements_of_one_id_are_answered_in_reverse(patch: Patch) -> None:
    answering(patch, "settle", lambda items, found: reversed_per_id([one.id for one in items], found))


@breaks("a batch has one result per item, in order: enqueue")
def three_requests_of_one_id_are_answered_in_reverse(patch: Patch) -> None:
    def change(items: Sequence[Any], found: list[Any]) -> Sequence[Any]:
        ids = [one.job.id for one in items]
        return reversed_per_id(ids, found) if any(ids.count(id) > 2 for id in ids) else found

    answering(patch, "enqueue", change)


@breaks("a batch has one result per item, in order: cancel")
def a_cancel_of_three_is_answered_by_the_order_of_ids(patch: Patch) -> None:
    def change(ids: Sequence[Any], found: list[Any]) -> Sequence[Any]:
        return found if len(ids) < 3 else [found[at] for at in sorted(range(len(ids)), key=ids.__getitem__)]

    answering(patch, "cancel", change)


@breaks("a batch is a list of independent jobs: forget")
def a_forget_knows_a_repeated_id_twice(patch: Patch) -> None:
    def change(ids: Sequence[Any], found: list[Any]) -> Sequence[Any]:
        return [known or found[list(ids).index(id)] for id, known in zip(ids, found, strict=True)]

    answering(patch, "forget", change)


@breaks("a batch is a list of independent jobs: retry_failed")
def a_retry_of_several_stops_at_an_unknown_id(patch: Patch) -> None:
    original = MemoryStorage.retry_failed

    async def mutant(self: MemoryStorage, queue: str, ids: Sequence[str], **named: Any) -> Any:
        found = [(await original(self, queue, [id], **named))[0] for id in ids[:1]]
        for id in ids[1:]:
            stops = found[-1] == "not_found"
            found += ["not_found"] if stops else await original(self, queue, [id], **named)
        return found

    patch.setattr(MemoryStorage, "retry_failed", mutant)


# -- limits ------------------------------------------------------------------------------------------


@breaks("claims follow the order")
def a_claim_of_three_to_five_takes_the_oldest(patch: Patch) -> None:
    original = claiming._claim_due_jobs

    def mutant(index: Index, queue: QueueIndex, lease: str, holder: str, limit: int) -> Any:
        if not 3 <= limit <= 5:
            return original(index, queue, lease, holder, limit)
        due = []
        while (slot := queue.pop_due()) is not None and slot.current is not None:
            due.append(slot.current)
        oldest = sorted(due, key=lambda job: (job.run_at, job.seq))
        for job in oldest[limit:]:
            queue.put(job.id, replace(queue.slots[job.id]))
        taken = iter([queue.slots[job.id] for job in due if job in oldest[:limit]])
        with patch.context() as inner:
            inner.setattr(queue, "pop_due", lambda: next(taken, None))
            return original(index, queue, lease, holder, limit)

    patch.setattr(claiming, "_claim_due_jobs", mutant)


@breaks("reap: up to `limit` jobs")
def a_reap_of_three_to_five_takes_two(patch: Patch) -> None:
    original = claiming.reap
    patch.setattr(
        claiming,
        "reap",
        lambda index, queue, limit: original(index, queue, 2 if 3 <= limit <= 5 else limit),
    )


# -- defaults of arguments ---------------------------------------------------------------------------


def with_default(patch: Patch, verb: str, **defaults: Any) -> None:
    """Give arguments of a verb other defaults than those of the protocol."""
    original = getattr(MemoryStorage, verb)

    async def mutant(self: MemoryStorage, *args: Any, **named: Any) -> Any:
        return await original(self, *args, **{**defaults, **named})

    mutant.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    patch.setattr(MemoryStorage, verb, mutant)


@breaks("cancel: running is False by default")
def a_cancel_cancels_runs_by_default(patch: Patch) -> None:
    with_default(patch, "cancel", running=True)


@breaks("events: after is None by default, the start of the log")
def events_begin_at_the_end_by_default(patch: Patch) -> None:
    with_default(patch, "events", after=LATEST)


# -- repeats by fence --------------------------------------------------------------------------------


@breaks("settle: a repeated Cancelled is answered done")
def a_repeated_cancelled_is_lost(patch: Patch) -> None:
    original = rules.settle_from_outcome
    patch.setattr(
        rules,
        "settle_from_outcome",
        lambda outcome, one: rules.LOST if isinstance(one.action, Cancelled) else original(outcome, one),
    )


@breaks("settle: a HandOff on a cancelled outcome is answered cancelled")
def a_repeated_hand_off_is_lost(patch: Patch) -> None:
    original = rules.settle_from_outcome
    patch.setattr(
        rules,
        "settle_from_outcome",
        lambda outcome, one: rules.LOST if isinstance(one.action, HandOff) else original(outcome, one),
    )


def without_fence(queue: QueueIndex, id: str) -> None:
    slot = queue.slots[id]
    if slot.outcome is not None:
        queue.put(id, replace(slot, outcome=replace(slot.outcome, fence=0)))


@breaks("an outcome repeats the fence of the run that ended: finish")
def a_finish_forgets_the_fence(patch: Patch) -> None:
    original = settling.finish

    def mutant(index: Index, queue: str, id: str, *rest: Any) -> Any:
        before = index.find_queue(queue).slots.get(id, Slot(None)).current
        answer = original(index, queue, id, *rest)
        if answer == "done" and before is not None:
            without_fence(index.queue(queue), id)
        return answer

    patch.setattr(settling, "finish", mutant)


@breaks("settle: a repeat on a run that reap or drop ended as cancelled")
def a_cancellation_by_reap_forgets_the_fence(patch: Patch) -> None:
    original = settling.return_job

    def mutant(index: Index, queue: QueueIndex, id: str, *, stalled: bool) -> Any:
        kind = original(index, queue, id, stalled=stalled)
        if kind == "cancelled":
            without_fence(queue, id)
        return kind

    patch.setattr(settling, "return_job", mutant)


@breaks("settle: the first repeat on a failed outcome is done, and so is the second")
def a_second_repeat_is_lost(patch: Patch) -> None:
    seen: set[tuple[int, str]] = set()
    original = rules.settle_from_outcome

    def mutant(outcome: Any, one: Any) -> Any:
        answer = original(outcome, one)
        key = (one.fence, one.id)
        if answer.status == "done" and key in seen:
            return rules.LOST
        seen.add(key)
        return answer

    patch.setattr(rules, "settle_from_outcome", mutant)


# -- events of level `all` ---------------------------------------------------------------------------


@breaks("events: claimed_at of an event of level all")
def a_claimed_event_has_no_claimed_at(patch: Patch) -> None:
    changed(patch, events, "note_event", lambda event, *_: replace(event, claimed_at=None))


@breaks("events: attempt of an event of level all")
def an_event_of_a_change_has_no_attempt(patch: Patch) -> None:
    changed(patch, events, "note_event", lambda event, *_: replace(event, attempt=0))


@breaks("events: the revisions of a promoted job")
def a_promoted_event_has_the_revisions_of_the_run(patch: Patch) -> None:
    def change(event: Any, kind: str, *_: Any) -> Any:
        return replace(event, first=1, revision=1) if kind == "promoted" else event

    changed(patch, events, "note_event", change)


# -- a second handle ---------------------------------------------------------------------------------


@breaks("every handle sees each change: slots")
def a_handle_caches_the_slots_that_it_read(patch: Patch) -> None:
    original, step = MemoryStorage.get, MemoryStorage._run_step

    async def mutant(self: MemoryStorage, queue: str, ids: Sequence[str], **named: Any) -> Any:
        known = self.__dict__.setdefault("_slots", {})
        key = (queue, tuple(ids), named.get("now"))
        if key not in known:
            known[key] = await original(self, queue, ids, **named)
        return known[key]

    async def write(self: MemoryStorage, *args: Any, **named: Any) -> Any:
        self.__dict__.pop("_slots", None)
        return await step(self, *args, **named)

    patch.setattr(MemoryStorage, "get", mutant)
    patch.setattr(MemoryStorage, "_run_step", write)


@breaks("every handle sees each change: settings")
def a_handle_claims_with_the_settings_that_it_knew(patch: Patch) -> None:
    claim, configure = MemoryStorage.claim, MemoryStorage.configure

    async def mutant(self: MemoryStorage, queue: str, *args: Any, **named: Any) -> Any:
        known = self.__dict__.setdefault("_settings", {})
        index = self._shared.index.find_queue(queue)
        now, index.settings = index.settings, known.setdefault(queue, index.settings)
        try:
            return await claim(self, queue, *args, **named)
        finally:
            index.settings = now

    async def remember(self: MemoryStorage, queue: str, *args: Any, **named: Any) -> Any:
        self.__dict__.setdefault("_settings", {}).pop(queue, None)
        return await configure(self, queue, *args, **named)

    patch.setattr(MemoryStorage, "claim", mutant)
    patch.setattr(MemoryStorage, "configure", remember)


@breaks("every handle sees each change: leases")
def a_lease_is_known_only_to_its_handle(patch: Patch) -> None:
    grant, claim = MemoryStorage.grant, MemoryStorage.claim

    async def mutant(self: MemoryStorage, *args: Any, **named: Any) -> Any:
        granted = await grant(self, *args, **named)
        self.__dict__.setdefault("_leases", set()).add(granted.lease)
        return granted

    async def check(self: MemoryStorage, queue: str, lease: str, limit: int, **named: Any) -> Any:
        own = lease in self.__dict__.get("_leases", ())
        return await claim(self, queue, lease if own else "0" * 32, limit, **named)

    patch.setattr(MemoryStorage, "grant", mutant)
    patch.setattr(MemoryStorage, "claim", check)


@breaks("time never steps back: a manual now before that of another handle")
def a_manual_now_has_a_floor_for_each_handle(patch: Patch) -> None:
    original = MemoryStorage._advance_clock

    def mutant(self: MemoryStorage, index: Index, now: int | None) -> bool:
        floor = self.__dict__.setdefault("_floor", 0)
        self.__dict__["_floor"] = index.now = max(floor, now or 0)
        return original(self, index, now)

    patch.setattr(MemoryStorage, "_advance_clock", mutant)


# -- prune -------------------------------------------------------------------------------------------


@breaks("prune ends")
def a_prune_never_ends(patch: Patch) -> None:
    changed(patch, whole_queue, "prune", lambda answer, *_: replace(answer, more=True))


@breaks("prune ends")
def a_prune_that_removed_something_says_more(patch: Patch) -> None:
    """The outcomes that it says to have removed stay, so each call removes the same ones again."""

    def mutant(queue: QueueIndex, limit: int) -> int:
        return len(list(queue.expired)[:limit])

    patch.setattr(whole_queue, "_prune_outcomes", mutant)


@breaks("prune removes what has expired: outcomes")
def a_prune_leaves_one_outcome(patch: Patch) -> None:
    original = whole_queue._prune_outcomes

    def mutant(queue: QueueIndex, limit: int) -> int:
        return original(queue, min(limit, max(0, len(list(queue.expired)) - 1)))

    patch.setattr(whole_queue, "_prune_outcomes", mutant)


@breaks("prune removes what has expired: more is true while something is left")
def a_prune_ends_too_early(patch: Patch) -> None:
    changed(patch, whole_queue, "prune", lambda answer, *_: replace(answer, more=False))


@breaks("prune removes what has expired: events")
def a_prune_leaves_one_event(patch: Patch) -> None:
    original = EventLog.excess
    patch.setattr(
        EventLog,
        "excess",
        lambda self, oldest_at, max_bytes: original(self, oldest_at, max_bytes)[:-1],
    )


@breaks("prune removes what has expired: outcomes behind a live job")
def a_prune_skips_ids_with_a_job(patch: Patch) -> None:
    original = whole_queue._prune_outcomes

    def mutant(queue: QueueIndex, limit: int) -> int:
        kept = {id: queue.slots[id] for id in queue.expired if queue.slots[id].current is not None}
        count = original(queue, limit)
        for id, slot in kept.items():
            queue.put(id, slot)
        return count

    patch.setattr(whole_queue, "_prune_outcomes", mutant)
