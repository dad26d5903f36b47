"""L3: clients that are killed, stopped, cancelled and cut off, and disks that fail under them."""

from __future__ import annotations

import time
from collections.abc import Callable

from dibs_conformance.concurrent.levels import no_clock
from dibs_conformance.crashes.cancellation import cancelled
from dibs_conformance.crashes.cut_connections import cut_off
from dibs_conformance.crashes.line_kills import killed_and_stopped
from dibs_conformance.crashes.os_errors import system_fails
from dibs_conformance.crashes.power_loss import power_fails
from dibs_conformance.crashes.proxy import has_server
from dibs_conformance.crashes.system_call_kills import system_calls
from dibs_conformance.report import Findings, Gap
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan, LoopRunner, OpenedStorage

#: Tries one way of going wrong, until that time.
Try = Callable[[LevelPlan, float], Findings]


def clients_that_die(plan: LevelPlan) -> Findings:
    """L3, one way after the other, each with its share of the time."""
    if not plan.claims.manual_clock:
        return Findings(untested=(no_clock(),))
    ways, found = ways_for(plan)
    ends = time.monotonic() + (plan.budget if plan.examples is None else 0.0)
    for at, way in enumerate(ways):
        left = max(0.0, ends - time.monotonic()) / (len(ways) - at)
        found = merge(found, way(plan, time.monotonic() + left))
        if found.failures:
            break
    return found


def ways_for(plan: LevelPlan) -> tuple[list[Try], Findings]:
    """What applies to this storage; and what does not, or cannot be tried."""
    ways: list[Try] = [cancelled]
    spared, untested = [], []
    if plan.claims.shared:
        ways.append(killed_and_stopped)
    else:
        why = "the storage lives in one process and dies with it (`shared` is not claimed)"
        spared += [Gap(name=name, why=why) for name in ("kill -9", "stop and continue")]
    shown, durability = told(plan)
    if not has_server(shown):
        spared.append(Gap(name="cut connections", why="the storage has no server"))
        if plan.claims.durable and plan.claims.shared:
            ways += [system_fails, system_calls]
        if durability.startswith("power loss") and shown.startswith("file:"):
            ways.append(power_fails)
        else:
            spared.append(
                Gap(name="power loss", why=f"the storage does not claim to survive it: {durability}")
            )
    elif isinstance(plan.locations.target, str):
        ways.append(cut_off)
    else:
        untested.append(Gap(name="cut connections", why="certify a URL, so that the kit can stand between"))
    return ways, Findings(spared=tuple(spared), untested=tuple(untested))


def told(plan: LevelPlan) -> tuple[str, str]:
    """What the storage says of where it is, and of what survives what."""
    runner = LoopRunner()
    try:
        opened = OpenedStorage(plan.locations, runner, plan.locations.new())
        try:
            return opened.storage.url, opened.storage.durability
        finally:
            opened.close()
    finally:
        runner.close()
