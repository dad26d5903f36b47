"""Bugs in the bound on the waiting jobs of a queue, in the code that memory and file share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dibs.model import rules
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.requests import Reject, Settings
from dibs.model.results import EnqueueResult
from dibs.storage.indexed import enqueueing
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.planting import Patch, breaks, changed

EXACT = "max_waiting is exact"
COUNTED = "max_waiting counts the waiting jobs, due or not"
ONLY_NEW = "max_waiting stops only an enqueue of a new job"
UNCHANGED = "a stopped request changes nothing"


def counting(patch: Patch, number: Callable[[Index, QueueIndex], int]) -> None:
    """Patch the number of waiting jobs by which the bound judges each request."""
    admit, decide = enqueueing.admit, rules.decide_new
    counted: list[int] = []

    def counted_first(index: Index, queue: QueueIndex, *rest: Any, bounded: bool = False) -> EnqueueResult:
        counted[:] = [number(index, queue)]
        return admit(index, queue, *rest, bounded=bounded)

    patch.setattr(enqueueing, "admit", counted_first)
    patch.setattr(rules, "decide_new", lambda slot, settings, _: decide(slot, settings, counted[0]))


def without(patch: Patch, left_out: Callable[[Index, Job], bool]) -> None:
    """Patch the number: some waiting jobs do not count."""

    def number(index: Index, queue: QueueIndex) -> int:
        jobs = (slot.current for slot in queue.slots.values())
        return sum(job is not None and job.run is None and not left_out(index, job) for job in jobs)

    counting(patch, number)


def stopped(patch: Patch, change: Callable[[EnqueueResult, Index, QueueIndex], EnqueueResult]) -> None:
    """Patch the result of a stopped request."""

    def changed_if_stopped(result: EnqueueResult, index: Index, queue: QueueIndex, *_: Any) -> EnqueueResult:
        return change(result, index, queue) if result.status in ("full", "dropped") else result

    changed(patch, enqueueing, "admit", changed_if_stopped)


@breaks(EXACT)
def a_bound_takes_one_job_more(patch: Patch) -> None:
    counting(patch, lambda _, queue: queue.waiting - 1)


@breaks(EXACT)
def a_bound_takes_one_job_less(patch: Patch) -> None:
    counting(patch, lambda _, queue: queue.waiting + 1)


@breaks(EXACT)
def a_bound_judges_a_batch_once_at_its_start(patch: Patch) -> None:
    original, at_start = enqueueing.enqueue, list[int]()

    def mutant(index: Index, queue: str, requests: Any) -> Any:
        at_start[:] = [index.queue(queue).waiting]
        return original(index, queue, requests)

    patch.setattr(enqueueing, "enqueue", mutant)
    counting(patch, lambda _, queue: at_start[0] if at_start else queue.waiting)


@breaks(EXACT)
def a_bound_stops_no_reject(patch: Patch) -> None:
    admit = enqueueing.admit

    def admitted(index: Index, queue: QueueIndex, new: Any, rule: Any, *, bounded: bool = False) -> Any:
        return admit(index, queue, new, rule, bounded=bounded and not isinstance(rule, Reject))

    patch.setattr(enqueueing, "admit", admitted)


@breaks(COUNTED)
def scheduled_jobs_do_not_count(patch: Patch) -> None:
    without(patch, lambda index, job: job.run_at > index.now)


@breaks(COUNTED)
def retrying_jobs_do_not_count(patch: Patch) -> None:
    without(patch, lambda _, job: job.is_retrying)


@breaks(COUNTED)
def jobs_with_a_key_do_not_count(patch: Patch) -> None:
    without(patch, lambda _, job: job.data.key is not None)


@breaks(COUNTED)
def active_jobs_count(patch: Patch) -> None:
    counting(patch, lambda _, queue: queue.waiting + queue.active)


@breaks(COUNTED)
def blocked_jobs_count(patch: Patch) -> None:
    counting(patch, lambda _, queue: queue.waiting + queue.blocked)


@breaks(ONLY_NEW)
def a_bound_stops_an_update(patch: Patch) -> None:
    original = rules.decide_new

    def mutant(slot: Slot, settings: Settings, waiting: int) -> EnqueueResult | None:
        return original(
            EMPTY if slot.current is not None and slot.current.run is None else slot, settings, waiting
        )

    patch.setattr(rules, "decide_new", mutant)


@breaks(ONLY_NEW)
def a_bound_stops_a_successor(patch: Patch) -> None:
    original = rules.decide_new

    def mutant(slot: Slot, settings: Settings, waiting: int) -> EnqueueResult | None:
        return original(EMPTY if slot.current is not None and slot.current.run else slot, settings, waiting)

    patch.setattr(rules, "decide_new", mutant)


@breaks(ONLY_NEW)
def a_bound_stops_a_request_that_an_outcome_answers(patch: Patch) -> None:
    original = enqueueing.admit

    def mutant(index: Index, queue: QueueIndex, new: Any, rule: Any, *, bounded: bool = False) -> Any:
        found = rules.decide_new(queue.slots.get(new.id, EMPTY), queue.settings, queue.waiting)
        return found if bounded and found else original(index, queue, new, rule, bounded=bounded)

    patch.setattr(enqueueing, "admit", mutant)


@breaks(ONLY_NEW)
def a_bound_stops_a_follow_up(patch: Patch) -> None:
    original = enqueueing.admit
    patch.setattr(enqueueing, "admit", lambda *args, bounded=False: original(*args, bounded=True))  # noqa: ARG005


def losing(patch: Patch, lost: Callable[[Slot, Slot], bool]) -> None:
    """Patch the puts of a queue at its bound: some jobs that come to wait are lost."""
    original = QueueIndex.put

    def mutant(self: QueueIndex, id: str, after: Slot) -> None:
        before, most = self.slots.get(id, EMPTY), self.settings.max_waiting
        if most is not None and self.waiting >= most and after.current is not None and lost(before, after):
            after = replace(after, current=None)
        original(self, id, after)

    patch.setattr(QueueIndex, "put", mutant)


def is_waiting(slot: Slot) -> bool:
    return slot.current is not None and slot.current.run is None


def is_active(slot: Slot) -> bool:
    return slot.current is not None and slot.current.run is not None


@breaks(ONLY_NEW)
def a_bound_stops_a_return(patch: Patch) -> None:
    losing(patch, lambda before, after: is_active(before) and is_waiting(after) and before.successor is None)


@breaks(ONLY_NEW)
def a_bound_stops_a_promotion(patch: Patch) -> None:
    losing(patch, lambda before, after: before.successor is not None and is_waiting(after))


@breaks(ONLY_NEW)
def a_bound_stops_a_retry_of_a_failed_job(patch: Patch) -> None:
    losing(patch, lambda before, after: before.outcome is not None and after.outcome is None)


@breaks(UNCHANGED)
def a_stopped_request_draws_a_revision(patch: Patch) -> None:
    def change(result: EnqueueResult, index: Index, _: QueueIndex) -> EnqueueResult:
        number = index.next_number()
        return replace(result, first=number, revision=number)

    stopped(patch, change)


@breaks(UNCHANGED)
def a_stopped_request_is_remembered_by_its_key(patch: Patch) -> None:
    patch.setattr(rules, "STOPPED", frozenset())


@breaks(UNCHANGED)
def a_stopped_request_removes_the_outcome(patch: Patch) -> None:
    original = enqueueing.admit

    def mutant(
        index: Index, queue: QueueIndex, new: Any, rule: Any, *, bounded: bool = False
    ) -> EnqueueResult:
        result = original(index, queue, new, rule, bounded=bounded)
        if result.status in ("full", "dropped") and new.id in queue.slots:
            queue.put(new.id, EMPTY)
        return result

    patch.setattr(enqueueing, "admit", mutant)


@breaks("the answer of a queue at its bound is that of `when_full`")
def a_bound_always_refuses(patch: Patch) -> None:
    stopped(patch, lambda result, *_: replace(result, status="full"))


@breaks("the answer of a queue at its bound is that of `when_full`")
def a_bound_always_drops(patch: Patch) -> None:
    stopped(patch, lambda result, *_: replace(result, status="dropped"))
