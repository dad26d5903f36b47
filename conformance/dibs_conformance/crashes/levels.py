"""Level L3: clients that are killed, stopped, cancelled or disconnected, and disks that fail."""

from __future__ import annotations

import time
from collections.abc import Callable

from dibs_conformance.concurrent.levels import manual_clock_gap
from dibs_conformance.crashes.interrupted_calls import has_server, try_cancellation, try_cut_connections
from dibs_conformance.crashes.line_kills import try_kills_and_stops, try_system_call_kills
from dibs_conformance.crashes.lost_writes import try_lost_writes
from dibs_conformance.crashes.power_loss import (
    claims_power_loss,
    try_power_cuts,
    try_power_loss,
    try_restarts,
    untried_gap,
)
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report import Findings, SkippedTest
from dibs_conformance.report.values import merge_findings
from dibs_conformance.target import LevelPlan, OpenedStorage

#: Tests one kind of fault until a deadline of `time.monotonic()`.
FaultTest = Callable[[LevelPlan, float], Findings]


def clients_that_die(plan: LevelPlan) -> Findings:
    """Run L3: one kind of fault after the other, each with its share of the budget."""
    if not plan.claims.manual_clock:
        return Findings(untested=(manual_clock_gap(),))
    tests, found = tests_for(plan)
    plan.sources.append(lambda: found)
    ends = time.monotonic() + (plan.budget if plan.examples is None else 0.0)
    for at, test in enumerate(tests):
        left = max(0.0, ends - time.monotonic()) / (len(tests) - at)
        found = merge_findings(found, test(plan, time.monotonic() + left))
        if found.failures:
            break
    return found


def tests_for(plan: LevelPlan) -> tuple[list[FaultTest], Findings]:
    """Return the fault tests that apply to this storage, and findings that list the others with a reason."""
    tests: list[FaultTest] = [try_cancellation]
    spared, untested = [], []
    if plan.claims.shared:
        tests.append(try_kills_and_stops)
    else:
        spared += unshared_gaps(plan)
    if plan.claims.durable:
        tests.append(try_restarts)
        if plan.locations.has_hook("data_folder"):
            tests.append(try_lost_writes)
        else:
            why = "offer data_folder(location), the folder of the files that the kit copies and restores"
            spared.append(SkippedTest(name="lost writes", why=why))
    url, durability = storage_info(plan)
    power_test, power_gap = power_loss_test(plan, durability)
    if power_test is not None:
        tests.append(power_test)
    elif claims_power_loss(durability):
        untested.append(power_gap)
    if not has_server(url):
        spared.append(SkippedTest(name="cut connections", why="the storage has no server"))
        if plan.claims.durable and plan.claims.shared:
            tests.append(try_system_call_kills)
        if not claims_power_loss(durability):
            spared.append(power_gap)
    elif isinstance(plan.locations.target, str):
        tests.append(try_cut_connections)
    else:
        untested.append(
            SkippedTest(name="cut connections", why="certify a URL, so that the kit can insert a proxy")
        )
    return tests, Findings(spared=tuple(spared), untested=tuple(untested))


def unshared_gaps(plan: LevelPlan) -> list[SkippedTest]:
    """Return an entry for each fault that this storage cannot have, because one process at a time uses it."""
    why = "the storage exists only within one process (it does not claim `shared`)"
    names = ("stop and continue",) if plan.claims.durable else ("kill -9", "stop and continue")
    return [SkippedTest(name=name, why=why) for name in names]


def power_loss_test(plan: LevelPlan, durability: str) -> tuple[FaultTest | None, SkippedTest]:
    """Return the power loss test, or None if it cannot run, and the entry of the report for that case."""
    if not claims_power_loss(durability):
        why = f"the storage does not claim to survive it: {durability}"
        return None, SkippedTest(name="power loss", why=why)
    if plan.locations.has_hook("power_loss"):
        return try_power_cuts, untried_gap()
    return (try_power_loss if plan.locations.has_hook("data_folder") else None), untried_gap()


def storage_info(plan: LevelPlan) -> tuple[str, str]:
    """Return the url and the durability that the storage reports."""
    runner = LoopRunner()
    try:
        opened = OpenedStorage(plan.locations, runner, plan.locations.new())
        try:
            return opened.storage.url, opened.storage.durability
        finally:
            opened.close()
    finally:
        runner.close()
