"""Processes killed at any system call for their files, and such calls failed, whoever makes them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dibs_conformance.crashes.scenes import AFTERWARDS, SCENES, History, Way
from dibs_conformance.crashes.strace import Asked, NoTrace, Trace, instead, traced
from dibs_conformance.crashes.survivor import Witness, witness
from dibs_conformance.crashes.victim import Victim
from dibs_conformance.report import Findings, Gap
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan

#: A scene, a call of it, and what becomes of the call: an error by name, or "" for a kill.
Point = tuple[str, Asked, str]

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


class Calling:
    """A process under strace, and a witness."""

    def __init__(self, victim: Victim, folder: str) -> None:
        self._victim, self._folder = victim, folder

    def points(self, way: Way[Point], errors: Sequence[str]) -> list[Point]:
        """Every call below the folder, in every scene, undisturbed."""
        found: list[Point] = []
        for name in SCENES:
            history = way.history()
            calls = self._play(history, name).below(self._folder)
            self._go_on(way, history)
            found += [(name, asked, error) for asked in dict.fromkeys(calls) for error in errors]
        return found

    def kill(self, way: Way[Point], point: Point) -> None:
        name, asked, _ = point
        history = way.history()
        self._play(history, name, asked, "signal=KILL")
        if self._victim.died:
            way.count()
            self._victim.bury()
        self._go_on(way, history)

    def fail(self, way: Way[Point], point: Point) -> None:
        name, asked, error = point
        history = way.history()
        if self._play(history, name, asked, f"error={error}").injected:
            way.count()
            way.count(f"{error} at {asked.name}")
        if self._victim.died:
            self._victim.bury()
        self._go_on(way, history)

    def _play(self, history: History, name: str, asked: Asked | None = None, fate: str = "") -> Trace:
        """Play a scene under strace, in which a call may have another fate."""
        order, victim = history.begin(SCENES[name]), self._victim.alive()
        with traced(victim.pid, asked, *(instead(asked, fate) if asked else ())) as trace:
            victim.does(order)
            history.add(victim.calls())
        return trace

    def _go_on(self, way: Way[Point], history: History) -> None:
        """The place goes on working, for the others, and for the process if it lives."""
        if self._victim.lives:
            victim = self._victim.alive()
            victim.does(history.order(AFTERWARDS))
            history.add(victim.calls())
        history.end()
        way.judge(history)


def system_calls(plan: LevelPlan, until: float) -> Findings:
    """Kill at each call, then let each fail with each error."""
    location, now = plan.locations.new(), time.monotonic()
    with witness(plan.locations, location) as seen:
        kills, fails = way_of(KILLED, seen, "at a call", plan), way_of(FAILED, seen, "failed call", plan)
        victim = Victim(plan, location)
        calling = Calling(victim, folder_of(seen))
        try:
            points = calling.points(kills, ERRORS)
            fatal = [(name, asked, "") for name, asked, error in points if error == ERRORS[0]]
            kills.try_all(fatal, lambda point: calling.kill(kills, point), (now + until) / 2)
            if kills.failure is None:
                fails.try_all(points, lambda point: calling.fail(fails, point), until)
        except NoTrace as error:
            return Findings(spared=(Gap(name="kill -9 and errors at every system call", why=str(error)),))
        finally:
            victim.bury()
        return merge(kills.findings(), fails.findings())


def way_of(texts: tuple[str, str, str], seen: Witness, queues: str, plan: LevelPlan) -> Way[Point]:
    """With strace all is slow: beside what time there is, as many as were asked for, or each scene once."""
    return Way(*texts, seen, queues, plan.seed, fewest=plan.examples or len(SCENES))


def folder_of(seen: Witness) -> str:
    """Where the storage has its files, by its own word."""
    return seen.player.storage.url.partition(":")[2].partition("?")[0]
