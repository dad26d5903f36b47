"""Processes killed at any system call for their files, and such calls failed, whoever makes them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dibs_conformance.crashes.scenes import RECOVERY_ACTIONS, SCENES, FaultCampaign, FaultHistory
from dibs_conformance.crashes.strace import StraceUnavailable, SystemCall, Trace, injection, trace_process
from dibs_conformance.crashes.survivor import ThreadSurvivor, thread_survivor
from dibs_conformance.crashes.victim import Victim
from dibs_conformance.report import Findings, Gap
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan

#: A scene, a call of it, and what becomes of the call: an error by name, or "" for a kill.
CallPoint = tuple[str, SystemCall, str]

#: EINTR is for whoever does not repeat what was interrupted; Python does (PEP 475).
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "EINTR")

KILLED = (
    "a caller killed at a system call leaves nothing half done",
    "What a process killed at any call for its files had under way happened whole or not at all.",
    "kill -9 at a system call",
)
FAILED = (
    "a system call that fails is told and leaves nothing half done",
    "Whatever call for its files fails, by whomever it is made: refused, unknown, or done; and all goes on.",
    "system call failed, by strace",
)


class SystemCallKiller:
    """A process under strace, and a witness."""

    def __init__(self, victim: Victim, folder: str) -> None:
        self._victim, self._folder = victim, folder

    def points(self, campaign: FaultCampaign[CallPoint], errors: Sequence[str]) -> list[CallPoint]:
        """Every call below the folder, in every scene, undisturbed."""
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
        self._recover(campaign, history)

    def _run_scene(
        self, history: FaultHistory, name: str, call: SystemCall | None = None, effect: str = ""
    ) -> Trace:
        """Play a scene under strace, in which a call may have another fate."""
        program, victim = history.run_setup(SCENES[name]), self._victim.process()
        with trace_process(victim.pid, call, *(injection(call, effect) if call else ())) as trace:
            victim.start(program)
            history.add(victim.wait())
        return trace

    def _recover(self, campaign: FaultCampaign[CallPoint], history: FaultHistory) -> None:
        """The place goes on working, for the others, and for the process if it lives."""
        if self._victim.is_running:
            victim = self._victim.process()
            victim.start(history.program(RECOVERY_ACTIONS))
            history.add(victim.wait())
        history.finish()
        campaign.check(history)


def try_system_call_kills(plan: LevelPlan, until: float) -> Findings:
    """Kill at each call, then let each fail with each error."""
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
            return Findings(spared=(Gap(name="kill -9 and errors at every system call", why=str(error)),))
        finally:
            victim.discard()
        return merge(kills.findings(), fails.findings())


def campaign_for(
    texts: tuple[str, str, str], survivor: ThreadSurvivor, queue_prefix: str, plan: LevelPlan
) -> FaultCampaign[CallPoint]:
    """With strace all is slow: beside what time there is, as many as were asked for, or each scene once."""
    return FaultCampaign(*texts, survivor, queue_prefix, plan.seed, min_points=plan.examples or len(SCENES))


def folder_of(survivor: ThreadSurvivor) -> str:
    """Where the storage has its files, by its own word."""
    return survivor.client.storage.url.partition(":")[2].partition("?")[0]
