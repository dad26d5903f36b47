"""Power lost at any moment: every disk it may leave holds what was answered, and nothing half done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path

from dibs.storage.registry import open_storage
from dibs_conformance.concurrent.actions import LARGE, Act, Hands, Order
from dibs_conformance.concurrent.calls import Call, Look, Round
from dibs_conformance.concurrent.disk_model import Deed, Disk, Recorder, lay_out
from dibs_conformance.concurrent.examples import GRANTS, IDS, START
from dibs_conformance.concurrent.linearize import woven
from dibs_conformance.concurrent.performer import look, perform
from dibs_conformance.concurrent.process_clients import PATIENCE, context
from dibs_conformance.concurrent.timeline import timeline
from dibs_conformance.crashes.scenes import Way
from dibs_conformance.crashes.survivor import Witness
from dibs_conformance.report import Failure, Findings
from dibs_conformance.target import LevelPlan

LAW = (
    "what was answered survives power loss",
    "Every disk that a power loss at any moment may leave holds what was answered; nothing is half done.",
    "power loss",
)
#: Enough of everything, and of large payloads, that a storage also puts together what it wrote before.
ACTS = (
    *GRANTS,
    Act(verb="enqueue", ids=IDS),
    Act(verb="claim"),
    Act(verb="enqueue", data=1),
    Act(verb="settle", how="fail, handled"),
    Act(verb="settle", how="complete", pick=1, flag=True),
    *(Act(verb="enqueue", data=data) for _ in range(5) for data in (LARGE, 0)),
    Act(verb="enqueue", data=2),
    Act(verb="claim"),
    Act(verb="settle", how="retry later"),
    Act(verb="cancel", ids=IDS),
    Act(verb="forget"),
)
QUEUE = "power"
#: So many disks are looked at whatever the time.
FEWEST = 40


@dataclass(frozen=True)
class Moment:
    """After so many deeds, this one of the disks that may be left."""

    deeds: int
    disk: int


def power_fails(plan: LevelPlan, until: float) -> Findings:
    """Write down what a process does to its disk, and look at what may be left of it at every moment."""
    url = plan.locations.new()
    calls, deeds = recorded(url)
    fewest = max(FEWEST, plan.examples or 0)
    way: Way[Moment] = Way(*LAW, Witness.__new__(Witness), QUEUE, plan.seed, fewest=fewest)
    losing = Losing(plan, way, calls, deeds)
    way.try_all(losing.moments(), losing.lose, until)
    return way.findings()


class Losing:
    """Lays out disks, opens them, and judges what is there."""

    def __init__(self, plan: LevelPlan, way: Way[Moment], calls: list[Call], deeds: list[Deed]) -> None:
        self._plan, self._way, self._calls, self._deeds = plan, way, calls, deeds

    def moments(self) -> list[Moment]:
        """Every moment between two deeds, and every disk that may be left then."""
        disk, found = Disk(), []
        for number, deed in enumerate(self._deeds, 1):
            disk.do(deed)
            if deed.kind != "write":
                left = sum(1 for _ in disk.after_power_loss())
                found += [Moment(number, which) for which in range(left)]
        return found

    def lose(self, moment: Moment) -> None:
        way, url = self._way, self._plan.locations.new()
        way.histories += 1
        way.count()
        disk = Disk()
        for deed in self._deeds[: moment.deeds]:
            disk.do(deed)
        lay_out(list(disk.after_power_loss())[moment.disk], disk.folders, folder_of(url))
        answered = sum(deed.kind == "mark" for deed in self._deeds[: moment.deeds])
        rounds = self._rounds(answered)
        way.calls += len(rounds)
        try:
            rounds[-1].look = asyncio.run(seen(url, self._calls[-1].now))
        except Exception as error:  # noqa: BLE001 - whatever it is, what was answered cannot be read
            why = f"after {answered} answers it does not open: {type(error).__name__}: {error}"
            way.failure = Failure(law=way.law, why=why, story=timeline(rounds))
            return
        verdict = woven(rounds, QUEUE)
        if not verdict.kept:
            way.failure = Failure(law=way.law, why=verdict.why, story=timeline(rounds))

    def _rounds(self, answered: int) -> list[Round]:
        """What was answered by then, and the call that was under way."""
        rounds = [Round(calls=[call]) for call in self._calls[:answered]]
        under_way = []
        for call in self._calls[answered : answered + 1]:
            cut = copy(call)
            cut.fate, cut.returned, cut.answer = "unknown", inf, None
            under_way.append(cut)
        return [*rounds, Round(calls=under_way)]


async def seen(url: str, now: int) -> Look:
    """Open what is left, see everything, and go on working."""
    async with open_storage(url, "manual") as storage:
        told = await look(storage, QUEUE, IDS, now, log=False)
        await perform(storage, "ann", Order(ACTS[:4], f"{QUEUE} again", Hands(), now), time.monotonic)
        return told


def folder_of(url: str) -> Path:
    return Path(url.partition(":")[2].partition("?")[0])


def recorded(url: str) -> tuple[list[Call], list[Deed]]:
    """Let a process do the acts, and write down what it does to its folder."""
    ours, theirs = context().Pipe()
    process = context().Process(target=record, args=(url, theirs), daemon=True)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    if not ours.poll(PATIENCE):
        process.kill()
        raise TimeoutError("the process whose disk is watched does not answer")
    calls, deeds = ours.recv()
    process.join(PATIENCE)
    ours.close()
    return calls, deeds


def record(url: str, wire: Connection) -> None:
    recorder = Recorder(folder_of(url))
    recorder.stand_between()
    calls = asyncio.run(acted(url, ACTS, recorder))
    wire.send((calls, recorder.deeds))


async def acted(url: str, acts: Sequence[Act], recorder: Recorder) -> list[Call]:
    def told(call: Call) -> None:
        if call.fate != "unknown":
            recorder.mark()

    async with open_storage(url, "manual") as storage:
        return await perform(storage, "bob", Order(tuple(acts), QUEUE, Hands(), START), time.monotonic, told)
