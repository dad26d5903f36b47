"""Bugs in the costs of runs: in the code that memory and file share, in the Lua and in the SQL.

The text that added costs to the contract named the bugs that `named` registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dibs.model import rates
from dibs.model.job import EMPTY
from dibs.model.limits import START_COST, Limits
from dibs.model.requests import Settings, Settlement, StartRate
from dibs.model.results import SettleResult
from dibs.storage.indexed import settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants import lua, sql
from tests.kit.mutants.limits import named
from tests.kit.mutants.planting import Mutant, Patch, add, breaks

EXACT = "a rate is exact, with costs"
ONCE = "a correction happens once"
NO_CREDIT = "a refund is no credit"
WAKES = "a moved clock ends a wait for work"


def costs(patch: Patch, change: Callable[[int, StartRate, int, int], int]) -> None:
    """Replace the arithmetic of costs."""
    patch.setattr(rates, "charge_cost", change)


def charged_by(patch: Patch, change: Callable[[Settings, str | None], tuple[Settings, str | None]]) -> None:
    """Charge costs by other settings, or to another key."""
    original = QueueIndex.charge_cost

    def mutant(self: QueueIndex, key: str | None, cost: int) -> None:
        settings = self.settings
        self.settings, key = change(settings, key)
        original(self, key, cost)
        self.settings = settings
        self._update_opening()

    patch.setattr(QueueIndex, "charge_cost", mutant)


def also_paid_by(patch: Patch, status: str) -> None:
    """Charge the cost of each settlement that has a status and ends no run."""
    original = settling._settle

    def mutant(index: Index, queue: QueueIndex, one: Settlement, limits: Limits) -> SettleResult:
        job = queue.slots.get(one.id, EMPTY).current
        is_late = job is None or job.run is None or job.run.fence != one.fence
        result = original(index, queue, one, limits)
        if one.cost is not None and result.status == status and (is_late or status == "refused"):
            queue.charge_cost(None, min(max(one.cost, 0), 5000))
        return result

    patch.setattr(settling, "_settle", mutant)


@named(EXACT)
def only_the_key_pays_a_cost(patch: Patch) -> None:
    charged_by(patch, lambda settings, key: (replace(settings, rate=None), key))


@named(EXACT)
def only_the_queue_pays_a_cost(patch: Patch) -> None:
    charged_by(patch, lambda settings, _: (settings, None))


@named(EXACT + ": it takes the place of the start")
def a_cost_is_charged_beside_the_start(patch: Patch) -> None:
    original = rates.charge_cost
    costs(patch, lambda clock, rate, cost, now: original(clock, rate, cost + START_COST, now))


@named(EXACT + ": rounded up")
def the_rounding_of_a_cost_gives_away(patch: Patch) -> None:
    original = rates.charge_cost

    def mutant(clock: int, rate: StartRate, cost: int, now: int) -> int:
        after = original(clock, rate, cost, now)
        return after - 1 if (cost - START_COST) * rates.interval(rate) % 1000 else after

    costs(patch, mutant)


@breaks(EXACT + ": a clock is at most 366 days ahead")
def a_cost_has_no_bound(patch: Patch) -> None:
    patch.setattr(rates, "FURTHEST", 2**62)


@breaks(EXACT + ": by the key of the run")
def a_cost_is_paid_after_the_end(patch: Patch) -> None:
    original = settling._settle

    def mutant(index: Index, queue: QueueIndex, one: Settlement, limits: Limits) -> SettleResult:
        result = original(index, queue, replace(one, cost=None), limits)
        job = queue.slots.get(one.id, EMPTY).current
        if one.cost is not None and result.status in ("done", "returned"):
            queue.charge_cost(None if job is None else job.data.key, one.cost)
        return result

    patch.setattr(settling, "_settle", mutant)


@named(ONCE)
def a_repeated_settlement_pays_again(patch: Patch) -> None:
    also_paid_by(patch, "done")


@named(ONCE)
def a_late_holder_pays(patch: Patch) -> None:
    also_paid_by(patch, "lost")


@named(ONCE)
def a_refused_settlement_pays(patch: Patch) -> None:
    also_paid_by(patch, "refused")


@breaks(ONCE + ": a run that was handed off pays nothing more")
def the_end_of_a_handed_off_run_pays(patch: Patch) -> None:
    def mutant(queue: QueueIndex, job: Any, cost: int) -> None:
        queue.charge_cost(job.data.key, cost)

    patch.setattr(settling, "_charge_cost", mutant)


@named(NO_CREDIT + ": a late clock saves nothing up")
def a_dear_run_is_paid_from_the_past(patch: Patch) -> None:
    def mutant(clock: int, rate: StartRate, cost: int, _: int) -> int:
        return clock - ((START_COST - cost) * rates.interval(rate) // 1000)

    costs(patch, mutant)


@named(NO_CREDIT + ", and it is given")
def a_refund_is_never_given(patch: Patch) -> None:
    original = rates.charge_cost
    costs(patch, lambda clock, rate, cost, now: max(clock, original(clock, rate, cost, now)))


@named(WAKES)
def a_refund_wakes_no_worker(patch: Patch) -> None:
    original = QueueIndex.charge_cost

    def mutant(self: QueueIndex, key: str | None, cost: int) -> None:
        version = self.work_version
        original(self, key, cost)
        self.work_version = version

    patch.setattr(QueueIndex, "charge_cost", mutant)


@named("next_due is never late: also after a refund")
def the_opening_before_a_refund_is_told(patch: Patch) -> None:
    original = QueueIndex.charge_cost

    def mutant(self: QueueIndex, key: str | None, cost: int) -> None:
        opens_at = self.opens_at
        original(self, key, cost)
        self.opens_at = max(opens_at, self.opens_at)

    patch.setattr(QueueIndex, "charge_cost", mutant)


add(
    Mutant(
        "lua_a_refund_of_a_key_wakes_no_worker",
        "redis",
        WAKES,
        lua.planted("include/key_lines", " or touched.given_back) then", ") then"),
    )
)
add(
    Mutant(
        "lua_the_first_cost_of_a_step_is_forgotten",
        "redis",
        EXACT + ": in order",
        lua.planted("include/key_lines", "local before = queue.clock or limits", "local before = limits"),
    )
)
add(
    Mutant(
        "sql_costs_count_at_the_time_of_the_last",
        "postgres",
        EXACT + ": each at its own time",
        sql.planted("limits", "k.costs[i], k.times[i])", "k.costs[i], k.times[cardinality(k.times)])"),
    )
)
add(
    Mutant(
        "sql_a_changed_rate_keeps_costs",
        "postgres",
        EXACT + ": a configure that changes a rate removes what was charged",
        sql.planted("queues", "        PERFORM charge_costs(before);\n", "        PERFORM 1;\n"),
    )
)
