"""L4: a private server of the target's kind, killed, filled, made to refuse and to forget."""

from __future__ import annotations

import time

from attrs import evolve

from dibs_conformance.concurrent.levels import no_clock
from dibs_conformance.concurrent.thread_clients import troupe
from dibs_conformance.faults.outages import (
    CLIENTS,
    FORGETTING,
    FULL,
    READ_ONLY,
    RESTART,
    Outage,
    Watch,
)
from dibs_conformance.faults.private_servers import Station, started, starter_for
from dibs_conformance.report import Findings, Gap
from dibs_conformance.report.findings import merge
from dibs_conformance.servers import ServerUnavailable
from dibs_conformance.target import LevelPlan, Locations

#: So many histories of each kind, however little time there is.
FEWEST = 3


def servers_that_fail(plan: LevelPlan) -> Findings:
    """L4, one kind of outage after the other, each with its share of the time."""
    if not plan.claims.manual_clock:
        return Findings(untested=(no_clock(),))
    start = starter_for(plan.locations.target)
    if start is None:
        why = "the kit can start no server of this kind; a storage without one goes up to L3"
        return Findings(untested=(Gap(name="server faults", why=why),))
    try:
        with started(start) as station:
            return on(station, plan)
    except ServerUnavailable as error:
        return Findings(untested=(Gap(name="server faults", why=str(error)),))


def on(station: Station, plan: LevelPlan) -> Findings:
    locations = Locations(station.url)
    found = Findings(spared=told(station))
    outages = [RESTART, FULL, READ_ONLY, *([FORGETTING] if station.forget() else ())]
    ends = time.monotonic() + (plan.budget if plan.examples is None else 0.0)
    for at, outage in enumerate(outages):
        until = time.monotonic() + max(0.0, ends - time.monotonic()) / (len(outages) - at)
        found = merge(found, tried(station, locations, outage, evolve(plan, locations=locations), until))
        if found.failures:
            break
    return found


def told(station: Station) -> tuple[Gap, ...]:
    why = f"tried on {station.name}, started for it: the server of the URL is never touched"
    return (Gap(name="the target's own server", why=why),)


def tried(station: Station, locations: Locations, outage: Outage, plan: LevelPlan, until: float) -> Findings:
    """Play one kind of outage until time is up or one history fails."""
    with troupe(locations, CLIENTS, stepping=False) as stage:
        watch, failure = Watch(station, stage, plan.seed), None
        fewest = max(FEWEST, plan.examples or 0)
        while failure is None and (watch.histories < fewest or time.monotonic() < until):
            failure = watch.play(outage)
        return watch.findings(outage, failure)
