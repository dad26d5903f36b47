"""One soak: producers and workers on a storage, faults for some time, then a drain and the accounts."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from attrs import asdict, define, frozen

from dibs import Dibs
from dibs_conformance.crashes.interrupted_calls import Proxy
from dibs_conformance.servers import PostgresServer, RedisServer, start_postgres, start_redis
from tests.soak.accounting import Accepted, Account, End, Evidence, Fault, Run, account
from tests.soak.app import QUEUES, app
from tests.soak.faults import FaultMaker, Program, small_disk
from tests.soak.journal import FOLDER_VARIABLE, read_journals
from tests.source import PROJECT

STORAGES: Final = ("file", "redis", "postgres")
#: Seconds that the workers have, after the last fault, to complete everything.
DRAIN_SECONDS: Final = 180.0
#: Seconds until the first run.
START_SECONDS: Final = 60.0
#: Seconds that a stopped worker has to end.
STOP_SECONDS: Final = 60.0


@frozen
class SoakPlan:
    """The size of a soak."""

    storage: str
    seconds: float
    #: Seconds of the lease of the workers.
    lease: float
    #: The program of a worker, with its arguments.
    worker: tuple[str, ...]
    #: Average seconds between two faults.
    fault_every: float
    #: Enqueues per second of each of the two producers.
    rate: float = 10.0
    workers: int = 2


def long_plan(storage: str, minutes: float) -> SoakPlan:
    """Return the plan of the long form: `dibs worker` with its default lease of 15 s."""
    worker = ("-m", "dibs", "worker", "tests.soak.app:app", "--processes", "2")
    return SoakPlan(storage, minutes * 60, 15.0, worker, fault_every=6.0)


def short_plan(storage: str) -> SoakPlan:
    """Return the plan of the short form, with a lease of 2 s."""
    return SoakPlan(storage, 12.0, 2.0, ("-m", "tests.soak.worker", "2"), fault_every=1.0)


@define(eq=False)
class SoakReport:
    """The results of one soak."""

    plan: SoakPlan
    account: Account
    #: Live jobs after the drain, by queue.
    left: dict[str, int]
    #: Number of times that a worker ended by itself, such as at a start while the server was away.
    own_exits: int
    #: Exit codes of the workers after their SIGTERM.
    worker_exits: list[int | None]
    #: Files in the folders to which handlers changed the working directory. There must be none.
    strays: list[str]

    def as_json(self) -> dict[str, object]:
        return {
            "storage": self.plan.storage,
            "minutes": round(self.plan.seconds / 60, 2),
            "lease": self.plan.lease,
            **self.account.as_json(),
            "left": self.left,
            "own_exits": self.own_exits,
            "worker_exits": self.worker_exits,
            "strays": self.strays,
        }


def run_soak(plan: SoakPlan, folder: Path) -> SoakReport:
    """Run a soak in an empty folder, write report.json there, and return the report."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk())
        server, proxy, url = stack.enter_context(open_storage_of(plan.storage, disk.folder))
        # Relative: the handlers change the working directory.
        url_of_programs = f"file:{os.path.relpath(disk.folder / 'jobs', PROJECT)}" if server is None else url
        environment = {"DIBS_URL": url_of_programs, FOLDER_VARIABLE: str(folder)}
        (folder / "elsewhere").mkdir()
        workers = [Program(plan.worker, environment, folder / f"worker-{n}.log") for n in range(plan.workers)]
        producing = ("-m", "tests.soak.producer", str(plan.rate))
        producers = [Program(producing, environment, folder / f"producer-{n}.log") for n in range(2)]
        link = disk.folder / "jobs" if server is None else None
        maker = FaultMaker(workers, producers, server, proxy, disk, link, freeze=1.5 * plan.lease)
        for program in (*workers, *producers):
            program.start()
            stack.callback(program.kill)
        wait_for_first_run(folder)
        cause_faults(plan, maker)
        (folder / "stop").touch()
        stop_producers(producers)
        left = asyncio.run(drain(url, workers))
        worker_exits = [worker.stop(STOP_SECONDS) for worker in workers]
        maker.faults += [
            Fault("chdir", line["at"], line["at"], frozenset([line["pid"]]))
            for line in read_journals(folder, "chdirs")
        ]
        strays = [str(path) for path in (folder / "elsewhere").glob("*/**/*")]
        (folder / "faults.json").write_bytes(msgspec.json.encode([asdict(fault) for fault in maker.faults]))
        evidence = asyncio.run(collect(url, folder, maker.faults))
        (folder / "ends.json").write_bytes(msgspec.json.encode([asdict(end) for end in evidence.ends]))
        own_exits = sum(len(program.own_exits) for program in workers)
        report = SoakReport(plan, account(evidence), left, own_exits, worker_exits, strays)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report.as_json())))
    return report


@contextmanager
def open_storage_of(
    storage: str, folder: Path
) -> Iterator[tuple[RedisServer | PostgresServer | None, Proxy | None, str]]:
    """Start the server of a storage in a folder, with a proxy; yield both and the URL of the proxy."""
    if storage == "file":
        (folder / "first").mkdir(mode=0o700)
        (folder / "jobs").symlink_to(folder / "first")
        yield None, None, f"file:{folder / 'jobs'}"
        return
    server: RedisServer | PostgresServer
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        if storage == "redis":
            server = start_redis(appendonly="yes", appendfsync="always")
        else:
            server = start_postgres(fsync="on", max_wal_size="128MB")
    finally:
        tempfile.tempdir = before
    with server, Proxy.for_url(server.url) as proxy:
        yield server, proxy, proxy.proxied_url(server.url)


def wait_for_first_run(folder: Path) -> None:
    """Wait until a worker has run a job, at most START_SECONDS."""
    deadline = time.monotonic() + START_SECONDS
    while not any(folder.glob("runs-*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)


def cause_faults(plan: SoakPlan, maker: FaultMaker) -> None:
    """Cause faults until the time of the plan is over; then end the last one."""
    end = time.monotonic() + plan.seconds
    while (now := time.monotonic()) < end:
        next_fault = min(end, now + random.uniform(0, 2 * plan.fault_every))
        while time.monotonic() < next_fault:
            time.sleep(0.1)
            maker.thaw()
            for program in (*maker.workers, *maker.producers):
                program.keep_alive()
        maker.make_fault()
    maker.thaw(now=True)


def stop_producers(producers: list[Program]) -> None:
    """Wait until the producers have seen the file "stop" and ended."""
    deadline = time.monotonic() + STOP_SECONDS
    while not all(producer.ended for producer in producers) and time.monotonic() < deadline:
        time.sleep(0.1)


async def drain(url: str, workers: Sequence[Program]) -> dict[str, int]:
    """Wait until no queue has a live job, and return the numbers that are left after DRAIN_SECONDS."""
    deadline = time.monotonic() + DRAIN_SECONDS
    async with Dibs(url) as client:
        while True:
            counts = await client.storage.counts(QUEUES)
            left = {queue: each.waiting + each.active + each.blocked for queue, each in counts.items()}
            if not any(left.values()) or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.2)
            for worker in workers:
                worker.keep_alive()


async def collect(url: str, folder: Path, faults: list[Fault]) -> Evidence:
    """Read the journals of the processes and the event log of the storage."""
    accepted = [
        Accepted((line["queue"], line["id"]), line["revision"], line["at"])
        for line in read_journals(folder, "accepted")
        if "revision" in line
    ]
    async with Dibs(url) as client:
        ends = [end for queue in app.handlers for end in await read_ends(client, queue)]
    return Evidence(accepted, read_runs(folder), ends, faults)


def read_runs(folder: Path) -> list[Run]:
    lines = list(read_journals(folder, "runs"))
    ended = {_run_key(line): line["at"] for line in lines if line["step"] == "end"}
    return [
        Run((line["queue"], line["id"]), line["fence"], line["pid"], line["at"], ended.get(_run_key(line)))
        for line in lines
        if line["step"] == "begin"
    ]


def _run_key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["queue"], line["id"], line["fence"], line["pid"]


async def read_ends(client: Dibs, queue: str) -> list[End]:
    """Return all events of a queue that end an attempt."""
    ends: list[End] = []
    after = ""
    while (page := await client.storage.events(queue, after=after, limit=1000)).events:
        for _, event in page.events:
            name = (queue, event.id)
            ends.append(
                End(
                    name,
                    event.fence,
                    event.kind,
                    event.at / 1000,
                    event.first,
                    event.revision,
                    event.run_at,
                    event.claimed_at,
                )
            )
        after = page.offset
    return ends


def soak_minutes() -> float:
    """Return the length of the long form in minutes: DIBS_SOAK_MINUTES, by default 10."""
    return float(os.environ.get("DIBS_SOAK_MINUTES", "10"))
