"""Tests that kill a client process at a system call on its files, or make the system call fail.

They use strace, so they cover the calls of Python code and of libraries in C, for example SQLite.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from attrs import frozen

from dibs_conformance.crashes.scenes import RECOVERY_ACTIONS, SCENES, FaultCampaign, FaultHistory
from dibs_conformance.crashes.strace import (
    StraceUnavailable,
    SystemCall,
    Trace,
    injection_options,
    trace_process,
)
from dibs_conformance.crashes.survivor import ThreadSurvivor, thread_survivor
from dibs_conformance.crashes.victim import Victim
from dibs_conformance.report import Findings, LawFailure, SkippedTest
from dibs_conformance.report.findings import merge_findings
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs.calls import ClientCall

#: The name of a scene, the system call, and the name of the error; "" for a kill.
CallPoint = tuple[str, SystemCall, str]

#: EINTR matters for code in C. Python itself repeats interrupted calls (PEP 475).
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "EINTR")

KILLED = (
    "a caller killed at a system call leaves nothing half done",
    "A call killed at any system call on files takes effect completely or not at all.",
    "kill -9 at a system call",
)
FAILED = (
    "a system call that fails is told and leaves nothing half done",
    "After any failed system call on files, calls report truthfully and later calls work.",
    "system call failed",
)


@frozen
class SystemCallKiller:
    """The runner of scenes in a process under strace."""

    _victim: Victim
    _folder: str

    def points(self, campaign: FaultCampaign[CallPoint], errors: Sequence[str]) -> list[CallPoint]:
        """Return every system call below the folder, in every scene without faults, with each error."""
        found: list[CallPoint] = []
        for name in SCENES:
            history = campaign.new_history()
            calls = self._run_scene(history, name).calls_below(self._folder)
            self._recover(campaign, history)
            found += [(name, call, error) for call in dict.fromkeys(calls) for error in errors]
        return found

    def kill(self, campaign: FaultCampaign[CallPoint], point: CallPoint) -> None:
        name, call, _ = point
        history = campaign.new_history()
        self._run_scene(history, name, call, "signal=KILL")
        if self._victim.died:
            campaign.count_fault()
            self._victim.discard()
        self._recover(campaign, history)

    def fail(self, campaign: FaultCampaign[CallPoint], point: CallPoint) -> None:
        name, call, error = point
        history = campaign.new_history()
        if self._run_scene(history, name, call, f"error={error}").injected:
            campaign.count_fault()
            campaign.count_fault(f"{error} at {call.name}")
        if self._victim.died:
            self._victim.discard()
        for late in self._recover(campaign, history):
            if late.completion != "answered":
                told = f"{late.operation} was {late.completion}: {late.answer}"
                why = f"{name}: after {error} at {call.name}, {told}"
                campaign.failure = campaign.failure or LawFailure(law=campaign.law, why=why)

    def _run_scene(
        self, history: FaultHistory, name: str, call: SystemCall | None = None, effect: str = ""
    ) -> Trace:
        """Run a scene under strace. `effect` changes one system call."""
        program, victim = history.run_setup(SCENES[name]), self._victim.process()
        with trace_process(victim.pid, call, *(injection_options(call, effect) if call else ())) as trace:
            victim.start(program)
            history.add(victim.wait())
        return trace

    def _recover(self, campaign: FaultCampaign[CallPoint], history: FaultHistory) -> list[ClientCall]:
        """Run the recovery actions in the victim, if it is alive, and in the survivor. Check the history.

        Return the calls of the victim.
        """
        calls: list[ClientCall] = []
        if self._victim.is_running:
            victim = self._victim.process()
            victim.start(history.program(RECOVERY_ACTIONS))
            calls = victim.wait()
            history.add(calls)
        history.finish()
        campaign.check(history)
        return calls


def try_system_call_kills(plan: LevelPlan, until: float) -> Findings:
    """Kill the victim at each system call. Then make each system call fail with each of ERRORS."""
    location, now = plan.locations.new(), time.monotonic()
    with thread_survivor(plan.locations, location) as survivor:
        kills, fails = (
            campaign_for(KILLED, survivor, "at a call", plan),
            campaign_for(FAILED, survivor, "failed call", plan),
        )
        victim = Victim(plan, location)
        killer = SystemCallKiller(victim, folder_of(survivor))
        try:
            points = killer.points(kills, ERRORS)
            kill_points = [(name, call, "") for name, call, error in points if error == ERRORS[0]]
            kills.run(kill_points, lambda point: killer.kill(kills, point), (now + until) / 2)
            if kills.failure is None:
                fails.run(points, lambda point: killer.fail(fails, point), until)
        except StraceUnavailable as error:
            gap = SkippedTest(name="kill -9 and errors at every system call", why=str(error))
            return Findings(untested=(gap,))
        finally:
            victim.discard()
        return merge_findings(kills.findings(), fails.findings())


def campaign_for(
    texts: tuple[str, str, str], survivor: ThreadSurvivor, queue_prefix: str, plan: LevelPlan
) -> FaultCampaign[CallPoint]:
    """Return a campaign with fewer points to test at least, because strace is slow.

    It tests `plan.examples` points, or one per scene if that is not set, and more if there is time.
    """
    return FaultCampaign(*texts, survivor, queue_prefix, plan.seed, min_points=plan.examples or len(SCENES))


def folder_of(survivor: ThreadSurvivor) -> str:
    """Return the path of the storage's files."""
    return survivor.client.storage.url.partition(":")[2].partition("?")[0]
