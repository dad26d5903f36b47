"""Bugs in the clocks of rates, and in the `next_due` of claims, in the code of memory and file."""
# ruff: noqa: ARG005 - a mutant has the arguments of the original and uses fewer of them

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dibs.model import rates
from dibs.model.job import Job, Slot
from dibs.model.requests import Settings, StartRate
from dibs.model.results import ClaimResult
from dibs.storage.file import commits
from dibs.storage.indexed import claiming, settling, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.key_lines import KeyLines
from dibs.storage.indexed.orders import QUEUE_CLOCK
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.commit_log import replayed
from tests.kit.mutants.limits import is_leased, named
from tests.kit.mutants.planting import Patch, Plant, breaks, changed

# -- rates -------------------------------------------------------------------------------------------


@named("a rate is exact: the interval is rounded up")
def the_interval_is_rounded_down(patch: Patch) -> None:
    patch.setattr(rates, "interval", lambda rate: rate.per * 1000 // rate.starts)


@named("a rate is exact")
def a_late_clock_saves_starts_up(patch: Patch) -> None:
    patch.setattr(
        rates,
        "charge_start",
        lambda clock, rate, now: (clock or now * 1000) + rates.interval(rate),
    )


@named("a rate is exact: nothing gives a start back")
def a_release_refunds_its_start(patch: Patch) -> None:
    def refund(_: Any, index: Index, queue: QueueIndex, slot: Slot, job: Job, *__: Any) -> None:
        clocks = ((QUEUE_CLOCK, queue.settings.rate), (job.data.key, queue.settings.key_rate))
        for key, rate in clocks:
            if rate is not None and key is not None and key in queue.clocks.values:
                queue.put_clock(key, queue.clocks.values[key] - rates.interval(rate))

    changed(patch, settling, "_release", refund)


@named("a rate is exact: a configure that sets the same rate changes nothing")
def each_configure_resets_the_clocks(patch: Patch) -> None:
    original = whole_queue._reset_clocks

    def mutant(queue: QueueIndex, before: Settings, after: Settings) -> None:
        original(queue, replace(before, rate=None, key_rate=None), after)

    patch.setattr(whole_queue, "_reset_clocks", mutant)


@breaks("a rate is exact: prune may remove a clock that is not later than now")
def a_prune_removes_every_clock(patch: Patch) -> None:
    def mutant(queue: QueueIndex, now: int, limit: int) -> int:
        for key in list(queue.clocks.values):
            queue.put_clock(key, None)
        return 0

    patch.setattr(whole_queue, "_prune_clocks", mutant)


@breaks("a rate is exact: in each stretch of time")
def a_burst_is_one_larger(patch: Patch) -> None:
    change_burst(patch, 1)


@breaks("a rate is exact", examples=100)
def a_claim_charges_only_its_first_start(patch: Patch) -> None:
    original = QueueIndex.charge_start

    def mutant(self: QueueIndex, key: str | None) -> None:
        if not any(is_leased(self.slots[id].current) for id in (self.changes.slots if self.changes else ())):
            original(self, key)

    patch.setattr(QueueIndex, "charge_start", mutant)


@named("the admitted are taken, in order: burst starts are allowed at once")
def a_burst_is_one_smaller(patch: Patch) -> None:
    change_burst(patch, -1)


def change_burst(patch: Patch, by: int) -> None:
    for name in ("allows_start", "next_start"):
        change_rate(patch, name, lambda rate: replace(rate, burst=rate.burst + by))


def change_rate(patch: Patch, name: str, change: Callable[[StartRate], StartRate]) -> None:
    original = getattr(rates, name)
    patch.setattr(rates, name, lambda clock, rate, *now: original(clock, change(rate), *now))


# -- next_due ----------------------------------------------------------------------------------------


@named("next_due is never late")
def the_opening_of_a_key_is_not_told(patch: Patch) -> None:
    patch.setattr(KeyLines, "next_opening", lambda self: None)


@named("next_due is never late: also with a rate")
def the_opening_of_the_queue_is_not_told(patch: Patch) -> None:
    patch.setattr(
        QueueIndex, "next_due", lambda self: self._next_scheduled() or self.key_lines.next_opening()
    )


@named("next_due is never late: also after a claim that reached its limit")
def a_claim_at_its_limit_does_not_tell_openings(patch: Patch) -> None:
    def change(answer: ClaimResult, index: Index, queue: str, _lease: str, limit: int) -> ClaimResult:
        scheduled = index.find_queue(queue)._next_scheduled()
        return replace(answer, next_due=scheduled) if len(answer.jobs) == limit else answer

    changed(patch, claiming, "claim", change)


@named("next_due is never late: and later than now")
def an_opening_that_is_past_is_told_again(patch: Patch) -> None:
    told: dict[int, int] = {}

    def change(at: int | None, self: KeyLines) -> int | None:
        if at is not None:
            told[id(self)] = at
        return at or told.get(id(self))

    changed(patch, KeyLines, "next_opening", change)


@breaks("next_due is never late: the first of all openings")
def the_last_opening_is_told(patch: Patch) -> None:
    def change(at: int | None, self: KeyLines) -> int | None:
        return None if at is None else max(self._opens_at.values(), default=at)

    changed(patch, KeyLines, "next_opening", change)


# -- durability --------------------------------------------------------------------------------------


def durable(law: str) -> Callable[[Plant], Plant]:
    return breaks(law, where="file")


@durable("a rate is exact: clocks are as durable as the claim that charged them")
def a_replay_loses_clocks(patch: Patch) -> None:
    replayed(patch, clocks=[])


@durable("a rate is exact: also after a checkpoint")
def a_checkpoint_loses_clocks(patch: Patch) -> None:
    original = commits.QueueImage

    def image(*args: Any, **fields: Any) -> Any:
        return original(*args, **({**fields, "clocks": []} if fields else fields))

    patch.setattr(commits, "QueueImage", image)
