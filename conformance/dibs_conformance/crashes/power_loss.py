"""Tests of a power loss after any file operation of a storage.

Every disk state that the power loss may leave must contain all answered calls, and no call in part.
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

from dibs.storage.registry import open_storage
from dibs_conformance.concurrent.actions import GRANTS, IDS, LARGE_DATA, START, Action, ClientState, Program
from dibs_conformance.concurrent.calls import Call, Round, Snapshot
from dibs_conformance.concurrent.client import run_program, take_snapshot
from dibs_conformance.concurrent.disk_model import DiskModel, DiskOperation, DiskRecorder, write_disk
from dibs_conformance.concurrent.linearize import linearize
from dibs_conformance.concurrent.process_clients import TIMEOUT, process_context
from dibs_conformance.concurrent.timeline import timeline
from dibs_conformance.crashes.scenes import FaultCampaign, Survivor
from dibs_conformance.report import Failure, Findings
from dibs_conformance.target import LevelPlan

LAW = (
    "what was answered survives power loss",
    "After a power loss at any point, every possible disk state holds all answered calls, and none by half.",
    "power loss",
)
#: All kinds of calls, with payloads so large that the storage also compacts its files.
ACTIONS = (
    *GRANTS,
    Action(operation="enqueue", ids=IDS),
    Action(operation="claim"),
    Action(operation="enqueue", data=1),
    Action(operation="settle", settle_as="fail, handled"),
    Action(operation="settle", settle_as="complete", nth_newest=1, flag=True),
    *(Action(operation="enqueue", data=data) for _ in range(5) for data in (LARGE_DATA, 0)),
    Action(operation="enqueue", data=2),
    Action(operation="claim"),
    Action(operation="settle", settle_as="retry later"),
    Action(operation="cancel", ids=IDS),
    Action(operation="forget"),
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
    url = plan.locations.new()
    calls, operations = record_process(url)
    min_points = max(MIN_POINTS, plan.examples or 0)
    campaign: FaultCampaign[PowerLossPoint] = FaultCampaign(
        *LAW, Survivor(), QUEUE, plan.seed, min_points=min_points
    )
    checker = PowerLossChecker(plan, campaign, calls, operations)
    campaign.run(checker.points(), checker.check_point, until)
    return campaign.findings()


@frozen
class PowerLossChecker:
    """The check of disk states: it writes each to a folder, opens a storage there, and checks its content."""

    _plan: LevelPlan
    _campaign: FaultCampaign[PowerLossPoint]
    _calls: list[Call]
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
        campaign, url = self._campaign, self._plan.locations.new()
        campaign.histories += 1
        campaign.count_fault()
        disk = DiskModel()
        for operation in self._operations[: point.operations]:
            disk.apply(operation)
        write_disk(list(disk.after_power_loss())[point.disk], disk.folders, folder_of(url))
        answered = sum(operation.kind == "mark" for operation in self._operations[: point.operations])
        rounds = self._rounds(answered)
        campaign.calls += len(rounds)
        try:
            rounds[-1].snapshot = asyncio.run(read_disk(url, self._calls[-1].now))
        except Exception as error:  # noqa: BLE001 - any exception means that answered calls cannot be read
            why = f"after {answered} answered calls it does not open: {type(error).__name__}: {error}"
            campaign.failure = Failure(law=campaign.law, why=why, story=timeline(rounds))
            return
        result = linearize(rounds, QUEUE)
        if not result.linearizable:
            campaign.failure = Failure(law=campaign.law, why=result.why, story=timeline(rounds))

    def _rounds(self, answered: int) -> list[Round]:
        """Return the answered calls, and the call in flight with its answer removed."""
        rounds = [Round(calls=[call]) for call in self._calls[:answered]]
        in_flight = []
        for call in self._calls[answered : answered + 1]:
            open_call = copy(call)
            open_call.completion, open_call.returned, open_call.answer = "unknown", inf, None
            in_flight.append(open_call)
        return [*rounds, Round(calls=in_flight)]


async def read_disk(url: str, now: int) -> Snapshot:
    """Open the storage at `url` and return its content. Also make some calls, which must work."""
    async with open_storage(url, "manual") as storage:
        found = await take_snapshot(storage, QUEUE, IDS, now, log=False)
        await run_program(
            storage, "ann", Program(ACTIONS[:4], f"{QUEUE} again", ClientState(), now), time.monotonic
        )
        return found


def folder_of(url: str) -> Path:
    return Path(url.partition(":")[2].partition("?")[0])


def record_process(url: str) -> tuple[list[Call], list[DiskOperation]]:
    """Run the actions in a new process. Return its calls and its file operations."""
    parent_end, child_end = process_context().Pipe()
    process = process_context().Process(target=record_in_process, args=(url, child_end), daemon=True)  # type: ignore[attr-defined]
    process.start()
    child_end.close()
    if not parent_end.poll(TIMEOUT):
        process.kill()
        raise TimeoutError("the process whose disk is recorded does not answer")
    calls, operations = parent_end.recv()
    process.join(TIMEOUT)
    parent_end.close()
    return calls, operations


def record_in_process(url: str, pipe: Connection) -> None:
    recorder = DiskRecorder(folder_of(url))
    recorder.install()
    calls = asyncio.run(run_recorded(url, ACTIONS, recorder))
    pipe.send((calls, recorder.operations))


async def run_recorded(url: str, actions: Sequence[Action], recorder: DiskRecorder) -> list[Call]:
    def on_call(call: Call) -> None:
        if call.completion != "unknown":
            recorder.mark()

    async with open_storage(url, "manual") as storage:
        return await run_program(
            storage, "bob", Program(tuple(actions), QUEUE, ClientState(), START), time.monotonic, on_call
        )
