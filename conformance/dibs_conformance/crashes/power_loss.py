"""Tests of a power loss, and of the death of the only process of a storage.

Every disk state that a power loss may leave must contain all answered calls, and no call in part. The file
operations of a process are recorded, and each disk state after each of them is tried.

The other tests kill a process that prepares a scene, closes the storage, opens it again, and is in the
disturbed action or right after it. Then the parent opens the storage, which no other process has open. So the
tests also fit a storage that only one process may use. With a device whose power can be cut, the power fails
at the moment of the kill.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from attrs import evolve, frozen

from dibs.storage.abilities import Compaction, ability
from dibs_conformance.concurrent.client import OnCall, ignore, run_program, take_snapshot
from dibs_conformance.concurrent.linearize import linearize, timeline
from dibs_conformance.concurrent.process_clients import (
    Child,
    LineCounter,
    SignalPoint,
)
from dibs_conformance.concurrent.scheduler import LineTracer, source_folders
from dibs_conformance.crashes.disk_model import DiskModel, DiskOperation, DiskRecorder, write_disk
from dibs_conformance.crashes.scenes import SCENES, FaultCampaign, FaultHistory, Survivor
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report import Findings, LawFailure, SkippedTest
from dibs_conformance.report.exceptions import exception_failure
from dibs_conformance.target import LevelPlan, Locations, OpenedStorage, OpenStorage
from dibs_conformance.verbs import remember
from dibs_conformance.verbs.actions import (
    IDS,
    START,
    ClientAction,
    ClientCall,
    ClientState,
    Program,
    Round,
    Snapshot,
    read_actions,
)
from dibs_conformance.verbs.enqueue import LARGE_DATA
from dibs_conformance.verbs.verb import Scene

LAW = (
    "what was answered survives power loss",
    "After a power loss at any point, every possible disk state holds all answered calls, and none by half.",
    "power loss",
)
#: All kinds of calls, with payloads so large that the storage also compacts its files.
ACTIONS = read_actions(
    "leases; enqueue a b; claim; enqueue data=1; report one; configure fail handler; settle fail; "
    f"settle nth_newest=1 flag; {f'enqueue data={LARGE_DATA}; enqueue; ' * 5}enqueue data=2; claim; "
    "settle retry later; cancel a b; forget"
)
QUEUE = "power"
#: Disk states tried even if the time is over.
MIN_POINTS = 40


@frozen
class PowerLossPoint:
    """A moment and a result of a power loss.

    `operations` is the number of file operations before it. `disk` is the index of a disk state that it may
    leave, in the order of `DiskModel.after_power_loss`.
    """

    operations: int
    disk: int


def try_power_loss(plan: LevelPlan, until: float) -> Findings:
    """Record the file operations of a process, and check every disk state a power loss may leave."""
    calls, operations = record_process(plan.locations, plan.locations.new())
    if not any(operation.kind == "sync" or operation.data for operation in operations):
        return Findings(untested=(unrecorded_gap(),))
    min_points = max(MIN_POINTS, plan.examples or 0)
    campaign: FaultCampaign[PowerLossPoint] = FaultCampaign(
        *LAW, Survivor(), QUEUE, plan.seed, min_points=min_points
    )
    checker = PowerLossChecker(plan, campaign, calls, operations)
    campaign.run(checker.points(), checker.check_point, until)
    return campaign.findings()


def claims_power_loss(durability: str) -> bool:
    """Return whether a sentence of a storage about its durability claims that jobs survive a power loss."""
    return durability.lower().startswith("power loss")


def untried_gap() -> SkippedTest:
    """Return the gap of a storage that claims to survive a power loss and offers no way to try it."""
    why = (
        "claimed, not tried: offer data_folder(location), the folder with the files that Python code writes, "
        "or power_loss(location), a device whose power can be cut (docs: Write a storage)"
    )
    return SkippedTest(name="power loss", why=why)


def unrecorded_gap() -> SkippedTest:
    """Return the gap of a storage whose file operations Python cannot record."""
    why = (
        "claimed, not tried: Python code writes no file in the folder of data_folder(location), so the kit "
        "cannot record the writes; offer power_loss(location)"
    )
    return SkippedTest(name="power loss", why=why)


@frozen
class PowerLossChecker:
    """The check of disk states: it writes each to a folder, opens a storage there, and checks its content."""

    _plan: LevelPlan
    _campaign: FaultCampaign[PowerLossPoint]
    _calls: list[ClientCall]
    _operations: list[DiskOperation]

    def points(self) -> list[PowerLossPoint]:
        """Return every possible disk state after every file operation."""
        disk, found = DiskModel(), []
        for number, operation in enumerate(self._operations, 1):
            disk.apply(operation)
            if operation.kind != "write":
                left = sum(1 for _ in disk.after_power_loss())
                found += [PowerLossPoint(number, disk_number) for disk_number in range(left)]
        return found

    def check_point(self, point: PowerLossPoint) -> None:
        campaign, location = self._campaign, self._plan.locations.new()
        campaign.histories += 1
        campaign.count_fault()
        disk = DiskModel()
        for operation in self._operations[: point.operations]:
            disk.apply(operation)
        write_disk(
            list(disk.after_power_loss())[point.disk], disk.folders, folder_of(self._plan.locations, location)
        )
        answered = sum(operation.kind == "mark" for operation in self._operations[: point.operations])
        rounds = self._rounds(answered)
        campaign.calls += len(rounds)
        try:
            rounds[-1].snapshot = asyncio.run(read_disk(self._plan.locations, location, self._calls[-1].now))
        except Exception as error:  # noqa: BLE001 - any exception means that answered calls cannot be read
            why = f"after {answered} answered calls it does not open: {type(error).__name__}: {error}"
            campaign.failure = LawFailure(law=campaign.law, why=why, story=timeline(rounds))
            return
        result = linearize(rounds, QUEUE)
        if not result.linearizable:
            campaign.failure = LawFailure(law=campaign.law, why=result.why, story=timeline(rounds))

    def _rounds(self, answered: int) -> list[Round]:
        """Return the answered calls, and the call in flight with its answer removed."""
        rounds = [Round(calls=[call]) for call in self._calls[:answered]]
        in_flight = []
        for call in self._calls[answered : answered + 1]:
            open_call = copy(call)
            open_call.completion, open_call.returned, open_call.answer = "unknown", inf, None
            in_flight.append(open_call)
        return [*rounds, Round(calls=in_flight)]


async def read_disk(locations: Locations, location: str, now: int) -> Snapshot:
    """Open the storage at a location and return its content. Also make some calls, which must work."""
    async with locations.open(location, "manual") as storage:
        found = await take_snapshot(storage, QUEUE, IDS, now, log=False)
        await run_program(
            storage, "ann", Program(ACTIONS[:4], f"{QUEUE} again", ClientState(), now), time.monotonic
        )
        return found


def folder_of(locations: Locations, location: str) -> Path:
    """Return the folder of a location. The target must offer the hook `data_folder`."""
    folder = locations.data_folder(location)
    assert folder is not None, f"no data_folder for {location}"  # noqa: S101 - the level asked for it before
    return folder


def record_process(locations: Locations, location: str) -> tuple[list[ClientCall], list[DiskOperation]]:
    """Run the actions in a new process. Return its calls and its file operations.

    Raise StorageFailed if the storage raised an exception or ended the process.
    """
    with Child(record_in_process, locations.target, location) as child:
        calls, operations = child.receive("the process whose file operations are recorded")
    return calls, operations


def record_in_process(target: str | OpenStorage, location: str, pipe: Connection) -> None:
    locations = Locations(target)
    recorder = DiskRecorder(folder_of(locations, location))
    recorder.install()
    pipe.send((asyncio.run(run_recorded(locations, location, ACTIONS, recorder)), recorder.operations))


async def run_recorded(
    locations: Locations, location: str, actions: Sequence[ClientAction], recorder: DiskRecorder
) -> list[ClientCall]:
    def on_call(call: ClientCall) -> None:
        if call.completion != "unknown":
            recorder.mark()

    async with locations.open(location, "manual") as storage:
        program = Program(tuple(actions), QUEUE, ClientState(), START)
        return await run_program(storage, "bob", program, time.monotonic, on_call)


RESTARTED = (
    "a restart finds what was answered",
    "After the death of its only process, a storage opens with all answered calls, and none by half.",
    "kill -9 of the only process",
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
        return run_campaign(plan, until, LAW, location, cut)


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
