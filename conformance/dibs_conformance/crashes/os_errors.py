"""Errors of the system at every call a storage makes to it: no room, a broken disk, too many open files."""

from __future__ import annotations

import errno

from dibs_conformance.concurrent.calls import Call
from dibs_conformance.concurrent.process_clients import Member
from dibs_conformance.concurrent.system_calls import ERRORS, Mishap
from dibs_conformance.crashes.scenes import AFTERWARDS, SCENES, Way, fewest, points
from dibs_conformance.crashes.survivor import witness
from dibs_conformance.crashes.victim import Victim
from dibs_conformance.report import Failure, Findings, Gap
from dibs_conformance.target import LevelPlan

#: A scene, a call of it, and the error.
Point = tuple[str, int, int]

FAILED = (
    "an error of the system is told and leaves nothing half done",
    "Whatever call fails with whatever error: refused and not done, unknown, or done; and all goes on.",
    "system call failed",
)


class Failing:
    """A process whose calls to the system fail, and a witness."""

    def __init__(self, victim: Member, way: Way[Point]) -> None:
        self._victim, self._way = victim, way

    def sizes(self) -> dict[str, int]:
        """How many calls to the system each scene makes."""
        found: dict[str, int] = {}
        for name in SCENES:
            self._play(name, None)
            found[name] = self._victim.done.calls
        return found

    def fail(self, point: Point) -> None:
        name, call, error = point
        self._play(name, Mishap(error, call))

    def _play(self, name: str, mishap: Mishap | None) -> None:
        history, victim = self._way.history(), self._victim
        victim.does(history.begin(SCENES[name]), mishap)
        history.add(victim.calls())
        failed = victim.done.failed
        if mishap is not None and failed:
            self._way.count()
            self._way.count(f"{errno.errorcode[mishap.error]} at {failed}")
        victim.does(history.order(AFTERWARDS))
        calls = victim.calls()
        history.add(calls)
        history.end()
        self._goes_on(calls, name, failed)
        self._way.judge(history)

    def _goes_on(self, calls: list[Call], name: str, failed: str) -> None:
        for call in calls:
            if call.fate != "answered":
                why = f"{name}: after {failed} failed, {call.verb} was {call.fate}: {call.answer}"
                self._way.failure = Failure(law=self._way.law, why=why)


def system_fails(plan: LevelPlan, until: float) -> Findings:
    """Let each call fail with each error."""
    location = plan.locations.new()
    with witness(plan.locations, location) as seen:
        way: Way[Point] = Way(*FAILED, seen, "failing", plan.seed, fewest=fewest(plan))
        victim = Victim(plan, location)
        failing = Failing(victim.alive(), way)
        try:
            sizes = failing.sizes()
            if not any(sizes.values()):
                return joined_gap(way.findings())
            moments = [(*point, error) for point in points(sizes) for error in ERRORS]
            way.try_all(moments, failing.fail, until)
        finally:
            victim.bury()
        return way.findings()


def joined_gap(found: Findings) -> Findings:
    """A storage whose files are written by a library in C: Python does not see its calls."""
    why = "the storage's calls to the system are not made by Python: nothing stands between but strace"
    gap = Gap(name="errors of the system, within Python", why=why)
    return Findings(histories=found.histories, events=found.events, failures=found.failures, spared=(gap,))
