"""Tests that kill a client process, or stop and continue it, right before a line of storage code."""

from __future__ import annotations

import signal
import time

from attrs import frozen

from dibs_conformance.concurrent.process_clients import ProcessClient, SignalPoint
from dibs_conformance.crashes.scenes import (
    RECOVERY_ACTIONS,
    SCENES,
    TIMEOUT,
    FaultCampaign,
    ThreadSurvivor,
    Victim,
    min_points,
    points,
    thread_survivor,
)
from dibs_conformance.report import Findings
from dibs_conformance.report.values import merge_findings
from dibs_conformance.target import LevelPlan

#: Seconds without an answer after which a call counts as blocked by the stopped process.
BLOCKED_AFTER = 0.2

#: The name of a scene, and the number of the line.
KillPoint = tuple[str, int]

KILLED = (
    "a killed caller leaves nothing half done",
    "A call killed at any line takes effect completely or not at all, and other clients keep working.",
    "kill -9",
)
STOPPED = (
    "a late holder changes nothing",
    "A process stopped at any line and continued after its lease does no harm to the new holders.",
    "stop and continue",
)


@frozen
class LineKiller:
    """The runner of scenes in a victim process that is killed or stopped at a line of storage code."""

    _victim: Victim
    _survivor: ThreadSurvivor

    def sizes(self, campaign: FaultCampaign[KillPoint]) -> dict[str, int]:
        """Return the number of storage lines that each scene executes.

        Each scene runs twice, and the second run is counted.
        """
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
        """Kill the victim at a line, run the recovery actions in the survivor, and check the history."""
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
        """Stop the victim at a line, and continue it after its lease has expired.

        In between, the survivor takes over the victim's jobs.
        """
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
        """Wait until the process is stopped or has finished. Return whether it is stopped."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if victim.is_stopped:
                return True
            if victim.has_finished(0.002):
                return False
        raise TimeoutError("the client process neither stopped nor answered")


def try_kills_and_stops(plan: LevelPlan, until: float) -> Findings:
    """Send SIGKILL before any line, then SIGSTOP before any line with SIGCONT after a takeover."""
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
        return merge_findings(kills.findings(), stops.findings())
