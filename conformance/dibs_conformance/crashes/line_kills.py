"""Processes killed, and stopped and continued, right before any line of the storage."""

from __future__ import annotations

import signal
import time

from dibs_conformance.concurrent.process_clients import ProcessClient, SignalPoint
from dibs_conformance.crashes.scenes import (
    RECOVERY_ACTIONS,
    SCENES,
    TIMEOUT,
    FaultCampaign,
    min_points,
    points,
)
from dibs_conformance.crashes.survivor import ThreadSurvivor, thread_survivor
from dibs_conformance.crashes.victim import Victim
from dibs_conformance.report import Findings
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan

#: Seconds after which one who is waited for is thought to wait for the one that was stopped.
BLOCKED_AFTER = 0.2

#: A scene, and a line of it.
KillPoint = tuple[str, int]

KILLED = (
    "a killed caller leaves nothing half done",
    "What a process killed at any line had under way happened whole or not at all; others go on.",
    "kill -9",
)
STOPPED = (
    "a late holder changes nothing",
    "A process stopped at any line past its lease goes on without harm to those that took over.",
    "stop and continue",
)


class LineKiller:
    """Victims on one place, and a witness."""

    def __init__(self, victim: Victim, survivor: ThreadSurvivor) -> None:
        self._victim, self._survivor = victim, survivor

    def sizes(self, campaign: FaultCampaign[KillPoint]) -> dict[str, int]:
        """How many lines of the storage each scene takes, undisturbed, and not for the first time."""
        found: dict[str, int] = {}
        for name, scene in (*SCENES.items(), *SCENES.items()):
            history = campaign.new_history()
            victim = self._victim.process()
            victim.start(history.run_setup(scene))
            history.add(victim.wait())
            history.finish()
            campaign.check(history)
            found[name] = victim.stats.lines
        return found

    def kill(self, campaign: FaultCampaign[KillPoint], point: KillPoint) -> None:
        """Kill it there; what is left is whole, and the others go on."""
        name, line = point
        history, victim = campaign.new_history(), self._victim.process()
        victim.start(history.run_setup(SCENES[name]), SignalPoint(signal.SIGKILL, line))
        calls = victim.wait()
        if victim.died:
            campaign.count_fault()
            self._victim.discard()
        history.add(calls)
        history.finish()
        campaign.check(history)

    def stop(self, campaign: FaultCampaign[KillPoint], point: KillPoint) -> None:
        """Stop it there, let its lease run out and others take over, and let it go on."""
        name, line = point
        history, victim = campaign.new_history(), self._victim.process()
        victim.start(history.run_setup(SCENES[name]), SignalPoint(signal.SIGSTOP, line))
        stopped = self._is_stopped(victim)
        on_time = self._survivor.run(history.program(RECOVERY_ACTIONS), BLOCKED_AFTER if stopped else TIMEOUT)
        victim.resume()
        others = self._survivor.wait_late() if on_time is None else on_time
        if stopped:
            campaign.count_fault()
            campaign.count_fault("stopped, and the others waited" if on_time is None else "zombie")
        history.add([*victim.wait(), *others])
        history.finish()
        campaign.check(history)

    def _is_stopped(self, victim: ProcessClient) -> bool:
        """Wait until it is stopped, or has answered."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if victim.is_stopped:
                return True
            if victim.has_finished(0.002):
                return False
        raise TimeoutError("the process neither stopped nor answered")


def try_kills_and_stops(plan: LevelPlan, until: float) -> Findings:
    """SIGKILL before any line; SIGSTOP before any line, and SIGCONT once others have taken over."""
    location, now = plan.locations.new(), time.monotonic()
    with thread_survivor(plan.locations, location) as survivor:
        kills: FaultCampaign[KillPoint] = FaultCampaign(
            *KILLED, survivor, "killed", plan.seed, min_points=min_points(plan)
        )
        stops: FaultCampaign[KillPoint] = FaultCampaign(
            *STOPPED, survivor, "stopped", plan.seed, min_points=min_points(plan)
        )
        victim = Victim(plan, location)
        killer = LineKiller(victim, survivor)
        try:
            kill_points = list(points(killer.sizes(kills)))
            kills.run(kill_points, lambda point: killer.kill(kills, point), (now + until) / 2)
            if kills.failure is None:
                stops.run(kill_points, lambda point: killer.stop(stops, point), until)
        finally:
            victim.discard()
        return merge(kills.findings(), stops.findings())
