"""The long part of level L2: clients make hundreds of random calls, and the history checker checks them.

Clients are processes if the storage claims `shared`, else tasks of one event loop. Afterwards a worker drains
the queues, and every id is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from msgspec import structs

from dibs.model.requests import SettingsPatch
from dibs.storage.protocol import Storage
from dibs_conformance.concurrent.process_clients import process_context
from dibs_conformance.history.check import CheckResult, check
from dibs_conformance.history.queue_calls import read_whole_log
from dibs_conformance.history.random_clients import FAILED, QUEUE, RandomClient, drain
from dibs_conformance.history.recorder import Recorder
from dibs_conformance.history.rules import HistoryRule, limits
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.findings import merge_findings
from dibs_conformance.steps import RecordedStep, read_file, write_steps
from dibs_conformance.target import LevelPlan, Locations, OpenStorage

CLIENTS = 3
#: Calls per client in one run: few enough for rule R22, and enough that every rule applies.
CALLS = 200
#: Runs added after the budget is over, until every rule has applied.
EXTRA_RUNS = 5
#: Seconds in which a client must finish its calls.
CLIENT_TIMEOUT = 300.0
#: This rule needs a resource outside the storage, which the kit does not have.
RULE_OUTSIDE = "R19"


def free_run(plan: LevelPlan) -> Findings:
    """Run random clients until the budget or the number of runs is used up and every rule has applied."""
    ends = time.monotonic() + plan.budget
    found = Findings()
    plan.sources.append(lambda: found)
    for number in range(10**6):
        is_over = time.monotonic() > ends if plan.examples is None else number >= plan.examples
        if number and is_over and (all_rules_met(found) or number > EXTRA_RUNS):
            break
        found = merge_findings(found, run_and_check(plan, plan.seed + number))
        plan.progress(found.histories)
        if found.failures:
            break
    return found


def all_rules_met(found: Findings) -> bool:
    return all(law.met for law in found.laws)


def run_and_check(plan: LevelPlan, seed: int) -> Findings:
    """Record and check one run. An exception of the storage becomes a failure."""
    try:
        found = findings_from(run_once(plan, seed))
    except Exception as error:  # noqa: BLE001 - any exception is a failure of the storage
        return Findings(histories=1, failures=(LawFailure(law=type(error).__name__, why=str(error)),))
    return found if plan.claims.limits else without_rules(found, limits.RULES)


def without_rules(found: Findings, rules: Sequence[type[HistoryRule]]) -> Findings:
    """Return the findings without the laws of some rules."""
    left_out = {rule.name for rule in rules}
    return structs.replace(
        found, laws=tuple(law for law in found.laws if law.name.split()[0] not in left_out)
    )


def findings_from(checked: CheckResult) -> Findings:
    """Return the result as findings of a level, without the rule about outside resources."""
    laws = tuple(law for law in checked.laws if not law.name.startswith(RULE_OUTSIDE))
    return Findings(histories=1, events=checked.steps, laws=laws, failures=checked.failures)


def run_once(plan: LevelPlan, seed: int) -> CheckResult:
    """Record one run in a new location, drain it, read all ids, and check the recording."""
    location = plan.locations.new()
    steps: list[RecordedStep] = []
    with TemporaryDirectory() as folder:
        if plan.claims.shared:
            steps += run_in_processes(plan.locations.target, location, seed, Path(folder))
            asyncio.run(drain_location(plan.locations, location, steps))
        else:
            asyncio.run(run_in_one_process(plan.locations, location, seed, steps))
    return check(steps, deep=True)


def run_in_processes(
    target: str | OpenStorage, location: str, seed: int, folder: Path
) -> Iterator[RecordedStep]:
    """Run each client in its own process, which writes its steps to a file, and yield all steps.

    All processes share the machine's monotonic clock, so their times are comparable.
    """
    paths = [folder / f"client-{n}" for n in range(CLIENTS)]
    clients: list[BaseProcess] = [
        process_context().Process(target=client_main, args=(target, location, seed, path))  # type: ignore[attr-defined]
        for path in paths
    ]
    for client in clients:
        client.start()
    for client, path in zip(clients, paths, strict=True):
        client.join(CLIENT_TIMEOUT)
        if client.is_alive():
            client.kill()
            raise ClientFailed(f"{path.name} did not finish within {CLIENT_TIMEOUT:g} s")
        if client.exitcode:
            raise ClientFailed(f"{path.name}: {last_error(path) or f'it exited with code {client.exitcode}'}")
    for path in paths:
        yield from read_file(path)


class ClientFailed(Exception):
    """A client exited with an error, or did not exit in time."""


def client_main(target: str | OpenStorage, location: str, seed: int, path: Path) -> None:
    try:
        asyncio.run(run_client(Locations(target), location, path.name, f"{seed}-{path.name}", path))
    except Exception as error:
        path.with_suffix(".error").write_text(f"{type(error).__name__}: {error}", "utf-8")
        raise


def last_error(path: Path) -> str:
    """Return the error that a client wrote before it exited, or ""."""
    error_file = path.with_suffix(".error")
    return error_file.read_text("utf-8") if error_file.exists() else ""


async def run_client(locations: Locations, location: str, name: str, seed: str, path: Path) -> None:
    with path.open("wb") as file:
        recorder = Recorder(lambda step: file.writelines(write_steps([step])))
        async with locations.open(location, "system") as storage:
            await RandomClient(recorder.wrap(storage, name), Random(seed), name).run(CALLS)


async def run_in_one_process(
    locations: Locations, location: str, seed: int, steps: list[RecordedStep]
) -> None:
    recorder = Recorder(steps.append)
    async with locations.open(location, "system") as storage:
        clients = [
            RandomClient(recorder.wrap(storage, f"client-{n}"), Random(f"{seed}-{n}"), f"client-{n}")
            for n in range(CLIENTS)
        ]
        await asyncio.gather(*(client.run(CALLS) for client in clients))
        await drain_and_read(storage, recorder, steps)


async def drain_location(locations: Locations, location: str, steps: list[RecordedStep]) -> None:
    async with locations.open(location, "system") as storage:
        await drain_and_read(storage, Recorder(steps.append), steps)


async def drain_and_read(storage: Storage, recorder: Recorder, steps: list[RecordedStep]) -> None:
    """Drain the queues, and read all ids, the counts and the log."""
    worker = recorder.wrap(storage, "drain")
    await worker.configure(QUEUE, SettingsPatch(paused=False, max_active=None))
    await drain(worker)
    now = recorder.clock()
    recorder.mark(RecordedStep(op="drained", began=now, ended=now, status="drained"))
    for queue in (QUEUE, FAILED):
        ids = sorted(ids_in(steps, queue))
        for start in range(0, len(ids), 1000):
            await worker.get(queue, ids[start : start + 1000])
    await worker.counts([QUEUE, FAILED])
    await read_whole_log(worker, QUEUE)


def ids_in(steps: Iterable[RecordedStep], queue: str) -> set[str]:
    return {step.id for step in steps if step.queue == queue and step.id}
