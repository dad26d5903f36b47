"""Level L4: outages of a private server of the same kind as the target's server."""

from __future__ import annotations

import time

from attrs import evolve

from dibs_conformance.concurrent.levels import manual_clock_gap
from dibs_conformance.concurrent.thread_clients import thread_clients
from dibs_conformance.faults.outages import (
    CLIENTS,
    FULL,
    READ_ONLY,
    RESTART,
    SCRIPTS_FLUSHED,
    OutageRunner,
    ServerOutage,
)
from dibs_conformance.faults.private_servers import BreakableServer, started_server, starter_for
from dibs_conformance.report import Findings, SkippedTest
from dibs_conformance.report.findings import merge_findings
from dibs_conformance.servers import ServerUnavailable
from dibs_conformance.target import LevelPlan, Locations

#: Histories per kind of outage, even if the time is over.
MIN_HISTORIES = 3


def servers_that_fail(plan: LevelPlan) -> Findings:
    """Run L4: one kind of outage after the other, each with its share of the budget."""
    if not plan.claims.manual_clock:
        return Findings(untested=(manual_clock_gap(),))
    start = starter_for(plan.locations.target)
    if start is None:
        why = "the kit cannot start a server of this kind; a storage without a server can reach L3"
        return Findings(untested=(SkippedTest(name="server faults", why=why),))
    try:
        with started_server(start) as server:
            return run_outages(server, plan)
    except ServerUnavailable as error:
        return Findings(untested=(SkippedTest(name="server faults", why=str(error)),))


def run_outages(server: BreakableServer, plan: LevelPlan) -> Findings:
    locations = Locations(server.url)
    found = Findings(spared=own_server_gap(server))
    plan.sources.append(lambda: found)
    outages = [RESTART, FULL, READ_ONLY, *([SCRIPTS_FLUSHED] if server.flush_scripts() else ())]
    ends = time.monotonic() + (plan.budget if plan.examples is None else 0.0)
    for at, outage in enumerate(outages):
        until = time.monotonic() + max(0.0, ends - time.monotonic()) / (len(outages) - at)
        found = merge_findings(
            found, run_outage(server, locations, outage, evolve(plan, locations=locations), until)
        )
        if found.failures:
            break
    return found


def own_server_gap(server: BreakableServer) -> tuple[SkippedTest, ...]:
    why = f"faults were injected into {server.name}, started for the test; the target's server is not touched"
    return (SkippedTest(name="the target's own server", why=why),)


def run_outage(
    server: BreakableServer, locations: Locations, outage: ServerOutage, plan: LevelPlan, until: float
) -> Findings:
    """Run histories with one kind of outage until the deadline `until` or the first failure."""
    with thread_clients(locations, CLIENTS, scheduled=False) as clients:
        runner, failure = OutageRunner(server, clients, plan.seed), None
        min_histories = max(MIN_HISTORIES, plan.examples or 0)
        while failure is None and (runner.histories < min_histories or time.monotonic() < until):
            failure = runner.run(outage)
        return runner.findings(outage, failure)
