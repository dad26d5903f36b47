"""Tests that make the system calls of a storage fail, one at a time: disk full, I/O error, too many files.

This covers only the calls that Python code makes. system_call_kills.py covers the calls of C libraries.
"""

from __future__ import annotations

import errno

from attrs import frozen

from dibs_conformance.concurrent.process_clients import ProcessClient
from dibs_conformance.concurrent.system_calls import ERRORS, InjectedError
from dibs_conformance.crashes.scenes import RECOVERY_ACTIONS, SCENES, FaultCampaign, min_points, points
from dibs_conformance.crashes.survivor import thread_survivor
from dibs_conformance.crashes.victim import Victim
from dibs_conformance.report import Findings, LawFailure, SkippedTest
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs.calls import ClientCall

#: The name of a scene, the number of the system call, and the error number.
ErrorPoint = tuple[str, int, int]

FAILED = (
    "an error of the system is told and leaves nothing half done",
    "After any system call error, calls report truthfully (refused, unknown or done) and later calls work.",
    "system call failed",
)


@frozen
class OsErrorInjector:
    """The runner of scenes in a process in which one system call fails."""

    _victim: ProcessClient
    _campaign: FaultCampaign[ErrorPoint]

    def sizes(self) -> dict[str, int]:
        """Return the number of system calls that each scene makes."""
        found: dict[str, int] = {}
        for name in SCENES:
            self._run_scene(name, None)
            found[name] = self._victim.stats.calls
        return found

    def fail(self, point: ErrorPoint) -> None:
        name, call, error = point
        self._run_scene(name, InjectedError(error, call))

    def _run_scene(self, name: str, error_point: InjectedError | None) -> None:
        history, victim = self._campaign.new_history(), self._victim
        victim.start(history.run_setup(SCENES[name]), error_point)
        history.add(victim.wait())
        failed = victim.stats.failed
        if error_point is not None and failed:
            self._campaign.count_fault()
            self._campaign.count_fault(f"{errno.errorcode[error_point.error]} at {failed}")
        victim.start(history.program(RECOVERY_ACTIONS))
        calls = victim.wait()
        history.add(calls)
        history.finish()
        self._check_recovery(calls, name, failed)
        self._campaign.check(history)

    def _check_recovery(self, calls: list[ClientCall], name: str, failed: str) -> None:
        for call in calls:
            if call.completion != "answered":
                why = f"{name}: after {failed} failed, {call.operation} was {call.completion}: {call.answer}"
                self._campaign.failure = LawFailure(law=self._campaign.law, why=why)


def try_os_errors(plan: LevelPlan, until: float) -> Findings:
    """Make each system call fail with each error."""
    location = plan.locations.new()
    with thread_survivor(plan.locations, location) as survivor:
        campaign: FaultCampaign[ErrorPoint] = FaultCampaign(
            *FAILED, survivor, "failing", plan.seed, min_points=min_points(plan)
        )
        victim = Victim(plan, location)
        injector = OsErrorInjector(victim.process(), campaign)
        try:
            sizes = injector.sizes()
            if not any(sizes.values()):
                return no_python_calls_gap(campaign.findings())
            error_points = [(*point, error) for point in points(sizes) for error in ERRORS]
            campaign.run(error_points, injector.fail, until)
        finally:
            victim.discard()
        return campaign.findings()


def no_python_calls_gap(found: Findings) -> Findings:
    """Return findings with a gap: a library in C makes the file calls, so Python cannot intercept them."""
    why = "Python does not make the storage's system calls; only strace can inject errors into them"
    gap = SkippedTest(name="system call errors, within Python", why=why)
    return Findings(histories=found.histories, events=found.events, failures=found.failures, spared=(gap,))
