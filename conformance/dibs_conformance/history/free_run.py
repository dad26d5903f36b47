"""L2, in the large: clients run free for hundreds of calls, and the checker judges what they recorded.

Where the storage is for several they are processes, each with the place opened for itself; else tasks of
one loop. Afterwards a healthy worker drains the queues, and every id is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from dibs.storage.protocol import Storage
from dibs_conformance.concurrent.process_clients import context
from dibs_conformance.history.check import Checked, check
from dibs_conformance.history.random_clients import FAILED, QUEUE, Client, drain
from dibs_conformance.history.recorder import Recorder
from dibs_conformance.history.step import Step, read_file, write_steps
from dibs_conformance.report import Failure, Findings
from dibs_conformance.report.findings import merge
from dibs_conformance.target import LevelPlan, Locations, OpenStorage

CLIENTS = 3
#: Of each client in one run: together short enough for brute force, long enough to meet every rule.
CALLS = 200
#: Runs that are added to a budget which is over, so that every rule is met.
MORE = 5
#: Seconds in which a client must have made its calls.
PATIENCE = 300.0
#: What traffic cannot meet: the kit has no resource outside the storage.
OUTSIDE = "R19"


def free_run(plan: LevelPlan) -> Findings:
    """Let clients run free until the budget, or the number of runs, is used up and every rule was met."""
    ends = time.monotonic() + plan.budget
    found = Findings()
    for number in range(10**6):
        enough = time.monotonic() > ends if plan.examples is None else number >= plan.examples
        if number and enough and (met(found) or number > MORE):
            break
        found = merge(found, attempt(plan, plan.seed + number))
        plan.progress(found.histories)
        if found.failures:
            break
    return found


def met(found: Findings) -> bool:
    return all(law.met for law in found.laws)


def attempt(plan: LevelPlan, seed: int) -> Findings:
    """One run, judged; whatever a storage raises is its failure."""
    try:
        return judged(run_once(plan, seed))
    except Exception as error:  # noqa: BLE001 - as above
        return Findings(histories=1, failures=(Failure(law=type(error).__name__, why=str(error)),))


def judged(checked: Checked) -> Findings:
    """What the checker found, as a level tells it."""
    laws = tuple(law for law in checked.laws if not law.name.startswith(OUTSIDE))
    return Findings(histories=1, events=checked.steps, laws=laws, failures=checked.failures)


def run_once(plan: LevelPlan, seed: int) -> Checked:
    """One run in a place of its own, from the first call to the last read."""
    location = plan.locations.new()
    steps: list[Step] = []
    with TemporaryDirectory() as folder:
        if plan.claims.shared:
            steps += in_processes(plan.locations.target, location, seed, Path(folder))
            asyncio.run(finished(plan.locations, location, steps))
        else:
            asyncio.run(in_one_process(plan.locations, location, seed, steps))
    return check(steps, deep=True)


def in_processes(target: str | OpenStorage, location: str, seed: int, folder: Path) -> Iterator[Step]:
    """Let each client have a process and a file; all share the machine's monotonic clock."""
    paths = [folder / f"client-{n}" for n in range(CLIENTS)]
    clients: list[BaseProcess] = [
        context().Process(target=process, args=(target, location, seed, path))  # type: ignore[attr-defined]
        for path in paths
    ]
    for client in clients:
        client.start()
    for client, path in zip(clients, paths, strict=True):
        client.join(PATIENCE)
        if client.is_alive():
            client.kill()
            raise ClientFailed(f"{path.name} did not end within {PATIENCE:g} s")
        if client.exitcode:
            raise ClientFailed(f"{path.name}: {said(path) or f'it ended with {client.exitcode}'}")
    for path in paths:
        yield from read_file(path)


class ClientFailed(Exception):
    """A client that runs free ended as none should."""


def process(target: str | OpenStorage, location: str, seed: int, path: Path) -> None:
    try:
        asyncio.run(alone(Locations(target), location, path.name, f"{seed}-{path.name}", path))
    except Exception as error:
        path.with_suffix(".error").write_text(f"{type(error).__name__}: {error}", "utf-8")
        raise


def said(path: Path) -> str:
    """The last words of a client."""
    words = path.with_suffix(".error")
    return words.read_text("utf-8") if words.exists() else ""


async def alone(locations: Locations, location: str, name: str, seed: str, path: Path) -> None:
    with path.open("wb") as file:
        recorder = Recorder(lambda step: file.writelines(write_steps([step])))
        async with locations.open(location, "system") as storage:
            await Client(recorder.wrap(storage, name), Random(seed), name).act(CALLS)


async def in_one_process(locations: Locations, location: str, seed: int, steps: list[Step]) -> None:
    recorder = Recorder(steps.append)
    async with locations.open(location, "system") as storage:
        clients = [
            Client(recorder.wrap(storage, f"client-{n}"), Random(f"{seed}-{n}"), f"client-{n}")
            for n in range(CLIENTS)
        ]
        await asyncio.gather(*(client.act(CALLS) for client in clients))
        await finish(storage, recorder, steps)


async def finished(locations: Locations, location: str, steps: list[Step]) -> None:
    async with locations.open(location, "system") as storage:
        await finish(storage, Recorder(steps.append), steps)


async def finish(storage: Storage, recorder: Recorder, steps: list[Step]) -> None:
    """Drain, and read everything once more."""
    worker = recorder.wrap(storage, "drain")
    await drain(worker)
    moment = recorder.clock()
    recorder.mark(Step(op="drained", began=moment, ended=moment, status="drained"))
    for queue in (QUEUE, FAILED):
        ids = sorted(ids_in(steps, queue))
        for start in range(0, len(ids), 1000):
            await worker.get(queue, ids[start : start + 1000])
    await worker.counts([QUEUE, FAILED])


def ids_in(steps: Iterable[Step], queue: str) -> set[str]:
    return {step.id for step in steps if step.queue == queue and step.id}
