"""Processes killed, and stopped and continued, right before any line of the storage."""

from __future__ import annotations

import signal
import time

from dibs_conformance.concurrent.process_clients import Doom, Member
from dibs_conformance.crashes.scenes import AFTERWARDS, PATIENCE, SCENES, Way, fewest, points
from dibs_conformance.crashes.survivor import Witness, witness
from dibs_conformance.crashes.victim import Victim
from dibs_conformance.report import Findings
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan

#: Seconds after which one who is waited for is thought to wait for the one that was stopped.
HELD_UP = 0.2

#: A scene, and a line of it.
Point = tuple[str, int]

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


class Dying:
    """Victims on one place, and a witness."""

    def __init__(self, victim: Victim, seen: Witness) -> None:
        self._victim, self._seen = victim, seen

    def sizes(self, way: Way[Point]) -> dict[str, int]:
        """How many lines of the storage each scene takes, undisturbed, and not for the first time."""
        found: dict[str, int] = {}
        for name, scene in (*SCENES.items(), *SCENES.items()):
            history = way.history()
            victim = self._victim.alive()
            victim.does(history.begin(scene))
            history.add(victim.calls())
            history.end()
            way.judge(history)
            found[name] = victim.done.lines
        return found

    def kill(self, way: Way[Point], point: Point) -> None:
        """Kill it there; what is left is whole, and the others go on."""
        name, line = point
        history, victim = way.history(), self._victim.alive()
        victim.does(history.begin(SCENES[name]), Doom(signal.SIGKILL, line))
        calls = victim.calls()
        if victim.died:
            way.count()
            self._victim.bury()
        history.add(calls)
        history.end()
        way.judge(history)

    def stop(self, way: Way[Point], point: Point) -> None:
        """Stop it there, let its lease run out and others take over, and let it go on."""
        name, line = point
        history, victim = way.history(), self._victim.alive()
        victim.does(history.begin(SCENES[name]), Doom(signal.SIGSTOP, line))
        stopped = self._is_stopped(victim)
        meanwhile = self._seen.does(history.order(AFTERWARDS), HELD_UP if stopped else PATIENCE)
        victim.go_on()
        others = self._seen.rest() if meanwhile is None else meanwhile
        if stopped:
            way.count()
            way.count("stopped, and the others waited" if meanwhile is None else "zombie")
        history.add([*victim.calls(), *others])
        history.end()
        way.judge(history)

    def _is_stopped(self, victim: Member) -> bool:
        """Wait until it is stopped, or has answered."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if victim.is_stopped:
                return True
            if victim.has_answered(0.002):
                return False
        raise TimeoutError("the process neither stopped nor answered")


def killed_and_stopped(plan: LevelPlan, until: float) -> Findings:
    """SIGKILL before any line; SIGSTOP before any line, and SIGCONT once others have taken over."""
    location, now = plan.locations.new(), time.monotonic()
    with witness(plan.locations, location) as seen:
        kills: Way[Point] = Way(*KILLED, seen, "killed", plan.seed, fewest=fewest(plan))
        stops: Way[Point] = Way(*STOPPED, seen, "stopped", plan.seed, fewest=fewest(plan))
        victim = Victim(plan, location)
        dying = Dying(victim, seen)
        try:
            moments = list(points(dying.sizes(kills)))
            kills.try_all(moments, lambda point: dying.kill(kills, point), (now + until) / 2)
            if kills.failure is None:
                stops.try_all(moments, lambda point: dying.stop(stops, point), until)
        finally:
            victim.bury()
        return merge(kills.findings(), stops.findings())
