"""Tests of a power loss after any file operation of a storage.

Every disk state that the power loss may leave must contain all answered calls, and no call in part.
`DiskRecorder` records the file operations of a process, and `DiskModel` lists the disk states: it assumes few
guarantees.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from copy import copy
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path

from attrs import frozen

from dibs_conformance.concurrent.client import run_program, take_snapshot
from dibs_conformance.concurrent.linearize import linearize, timeline
from dibs_conformance.concurrent.process_clients import Child
from dibs_conformance.crashes.disk_model import DiskModel, DiskOperation, DiskRecorder, write_disk
from dibs_conformance.crashes.scenes import FaultCampaign, Survivor
from dibs_conformance.report import Findings, LawFailure, SkippedTest
from dibs_conformance.target import LevelPlan, Locations, OpenStorage
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
