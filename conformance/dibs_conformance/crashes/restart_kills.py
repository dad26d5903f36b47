"""Tests that kill the only process of a storage, and open the storage again in another process.

Each history has a process of its own. It prepares a scene, closes the storage, opens it again, and is killed
in the disturbed action or right after it. Then the parent opens the storage, which no other process has open.
So the tests also fit a storage that only one process may use. With a device whose power can be cut, the power
fails at the moment of the kill.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from random import Random

from attrs import evolve, frozen

from dibs.storage.abilities import Compaction, ability
from dibs_conformance.concurrent.client import OnCall, ignore, run_program, take_snapshot
from dibs_conformance.concurrent.linearize import timeline
from dibs_conformance.concurrent.process_clients import (
    Child,
    LineCounter,
    SignalPoint,
)
from dibs_conformance.concurrent.scheduler import LineTracer, source_folders
from dibs_conformance.crashes.scenes import SCENES, FaultCampaign, FaultHistory, Survivor
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.exceptions import exception_failure
from dibs_conformance.target import LevelPlan, Locations, OpenedStorage, OpenStorage
from dibs_conformance.verbs import remember
from dibs_conformance.verbs.actions import ClientAction, ClientCall, ClientState, Program, Round, Snapshot
from dibs_conformance.verbs.verb import Scene

RESTARTED = (
    "a restart finds what was answered",
    "After the death of its only process, a storage opens with all answered calls, and none by half.",
    "kill -9 of the only process",
)
POWER_CUT = (
    "what was answered survives power loss",
    "After a power loss at any point, every possible disk state holds all answered calls, and none by half.",
    "power loss",
)
#: Kills of each scene that `points` lists. The time limit decides how many of them are tried.
KILLS_PER_SCENE = 40
#: The ms between a rehearsal and its history: a rehearsal must not set the clock of the history ahead.
REHEARSED_BEFORE = 5_000


@frozen
class RestartPoint:
    """The moment of a kill, as the share of the lines of storage code that the action needs.

    With `compacts`, the storage also does its rare work after the action, and its lines count, too.
    """

    share: float
    compacts: bool


#: The name of a scene, and the moment of the kill.
NamedPoint = tuple[str, RestartPoint]
#: A function that cuts the power of a device. A power cut drops all unsynced data.
CutPower = Callable[[], None]


@frozen
class DoomedClient:
    """The orders to a process that is killed: its scene, its location and the moment of its death."""

    target: str | OpenStorage
    location: str
    queue: str
    now: int
    scene: Scene
    point: RestartPoint

    def run(self) -> tuple[list[ClientCall], list[ClientCall]]:
        """Run a process until it is killed. Return the calls of the setup and those of the action.

        Raise StorageFailed for an exception of the storage, and if the process does not answer.
        """
        calls: list[ClientCall] = []
        with Child(run_doomed, self) as child:
            while call := child.next_message(f"a client of the {self.scene.action.operation} scene"):
                if calls and call.invoked == calls[-1].invoked:
                    calls.pop()
                calls.append(call)
        at = len(self.scene.setup)
        return calls[:at], calls[at:]


class RestartingSurvivor(Survivor):
    """A survivor that opens the storage for each program and each snapshot, and closes it after."""

    def __init__(self, locations: Locations, location: str) -> None:
        self.location = location
        self._locations = locations

    def run(self, program: Program, timeout: float) -> list[ClientCall] | None:
        del timeout
        with opened_here(self._locations, self.location) as (opened, runner):
            return runner.run(run_program(opened.storage, "ann", program, time.monotonic))

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        with opened_here(self._locations, self.location) as (opened, runner):
            return runner.run(take_snapshot(opened.storage, queue, ids, now, log=log))


@contextmanager
def opened_here(locations: Locations, location: str) -> Iterator[tuple[OpenedStorage, LoopRunner]]:
    """Open a storage in this process for a `with` block."""
    runner = LoopRunner()
    try:
        opened = OpenedStorage(locations, runner, location)
        try:
            yield opened, runner
        finally:
            opened.close()
    finally:
        runner.close()


@frozen
class RestartKiller:
    """The runner of scenes in processes that are killed. No other process has the storage open."""

    _plan: LevelPlan
    _campaign: FaultCampaign[NamedPoint]
    _survivor: RestartingSurvivor
    _cut: CutPower | None = None

    def kill(self, named: NamedPoint) -> None:
        """Kill a process at a point, cut the power if that is possible, and check the history."""
        name, point = named
        history = self._campaign.new_history()
        try:
            self._run(history, SCENES[name], point)
        except Exception as error:  # noqa: BLE001 - the storage may raise anything
            law = self._campaign.law
            found = exception_failure(error, timeline(history.rounds), law)
            self._campaign.failure = LawFailure(law=law, why=f"{name}: {found.why}", story=found.story)
            return
        self._campaign.check(history)

    def _run(self, history: FaultHistory, scene: Scene, point: RestartPoint) -> None:
        plan = self._plan
        client = DoomedClient(
            plan.locations.target, self._survivor.location, history.queue, history.now, scene, point
        )
        setup, calls = client.run()
        if self._cut is not None:
            self._cut()
        self._campaign.count_fault()
        history.rounds.append(Round(calls=setup))
        for call in setup:
            remember(history.state, call)
        history.add(calls)
        history.finish()


def restart_points(seed: int) -> list[NamedPoint]:
    """Return kills of every scene at random moments."""
    random = Random(seed)
    return [
        (name, RestartPoint(random.random(), random.random() < 0.5))
        for name in SCENES
        for _ in range(KILLS_PER_SCENE)
    ]


def try_restarts(plan: LevelPlan, until: float) -> Findings:
    """Kill the only process of a storage, in each scene, and open the storage again."""
    return run_campaign(plan, until, RESTARTED, plan.locations.new(), None)


def try_power_cuts(plan: LevelPlan, until: float) -> Findings:
    """Cut the power of a device of the storage in each scene, and open the storage again."""
    location = plan.locations.new()
    device = plan.locations.power_loss(location)
    assert device is not None, f"no power_loss for {location}"  # noqa: S101 - the level asked for it before
    with device as cut:
        return run_campaign(plan, until, POWER_CUT, location, cut)


def run_campaign(
    plan: LevelPlan, until: float, texts: tuple[str, str, str], location: str, cut: CutPower | None
) -> Findings:
    survivor = RestartingSurvivor(plan.locations, location)
    prefix = "cut" if cut else "restarted"
    campaign: FaultCampaign[NamedPoint] = FaultCampaign(
        *texts, survivor, prefix, plan.seed, min_points=plan.examples or len(SCENES)
    )
    killer = RestartKiller(plan, campaign, survivor, cut)
    campaign.run(restart_points(plan.seed), killer.kill, until)
    return campaign.findings()


# -- in the process ----------------------------------------------------------------------------------


def run_doomed(client: DoomedClient, pipe: Connection) -> None:
    """Run the setup, open the storage again, run the action, and die."""
    runner, counter = LoopRunner(), LineCounter()
    opened = OpenedStorage(Locations(client.target), runner, client.location)
    lines = LineTracer(source_folders(type(opened.storage)), counter.on_line)
    opened.close()
    with lines.trace():
        opened = OpenedStorage(Locations(client.target), runner, client.location)

    def run(actions: Sequence[ClientAction], program: Program, on_call: OnCall) -> None:
        doing = evolve(program, actions=tuple(actions))
        runner.run(run_program(opened.storage, "vic", doing, time.monotonic, on_call))

    def act(program: Program, on_call: OnCall) -> None:
        with lines.trace():
            run((client.scene.action,), program, on_call)
            if client.point.compacts and (compaction := ability(opened.storage, Compaction)) is not None:
                runner.run(compaction.compact())

    # The rehearsal counts the lines of the action, in another queue and at an earlier time than the history.
    rehearsal = Program((), f"{client.queue} rehearsed", ClientState(), client.now - REHEARSED_BEFORE)
    run(client.scene.setup, rehearsal, ignore)
    counter.reset(None)
    act(rehearsal, ignore)
    needed = counter.lines
    program = Program((), client.queue, ClientState(), client.now)
    run(client.scene.setup, program, pipe.send)
    with lines.trace():
        opened.reopen()
    counter.reset(SignalPoint(signal.SIGKILL, 1 + int(needed * client.point.share)))
    act(program, pipe.send)
    os.kill(os.getpid(), signal.SIGKILL)
