"""One measurement of one peer: all figures of a round. Each step of its program is a separate process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import quantiles
from typing import Any, Final

from attrs import asdict, define, frozen

from benchmarks.peers.backends import Backend
from benchmarks.peers.dibs_jobs import DibsJobs
from benchmarks.peers.environments import Environment, Sender, Usage, Worker, queue_names, run_step
from benchmarks.peers.systems import Peer

#: Jobs of a latency before those that count.
WARM_UP: Final = 20
#: Seconds between two looks for jobs that are left, after the last call of the handler.
LOOK: Final = 0.002


@frozen(kw_only=True)
class Effort:
    """The numbers of jobs and the durations of the measurements."""

    #: Share of the jobs of a full measurement.
    jobs: float = 1.0
    #: Jobs of a latency.
    latency_jobs: int = 300
    #: Milliseconds of single enqueues.
    single_ms: int = 2_000
    #: Seconds in which an idle worker is watched.
    idle: float = 2.0
    #: Jobs of the drain that keeps completed jobs.
    kept_jobs: int = 20_000


QUICK: Final = Effort(jobs=0.05, latency_jobs=60, single_ms=400, idle=0.5, kept_jobs=2_000)

Figures = dict[str, Any]


@define
class Run:
    """A measurement of one peer: its commands, its backend and its figures so far."""

    peer: Peer
    environment: Environment
    backend: Backend
    effort: Effort = Effort()

    def measure(self, *, first: bool) -> Figures:
        """Return all figures of the peer. Raises PeerUnavailable if a step fails or times out.

        `first`: this is the first round, which also has the bytes of kept jobs, and the peers of dibs with
        many queues.
        """
        peer, figures = self.peer, Figures()
        if peer.kind == "memory":
            return self.drain_in_one_process()
        figures |= self.enqueue() | self.single()
        variables = self.prepare()
        if peer.multi_process:
            figures |= self.pickup(variables)
        if peer.results:
            figures |= self.result(variables)
        if peer.kind == "file":
            variables = self.prepare()  # a worker that was killed leaves files behind, which distort sizes
        figures |= self.drain(variables, self.jobs(peer.line))
        if peer.keeps and first:
            figures["kept_bytes"] = self.kept_bytes()
        for queues in peer.queues if first or peer.runtime == "dibs" else ():
            figures[f"queues_{queues}"] = self.many_queues(queues)
        return figures

    def jobs(self, full: int) -> int:
        return max(100, int(full * self.effort.jobs))

    def enqueue(self) -> Figures:
        """Return the rate of the bulk enqueue, and what the server used for it."""
        jobs, variables = self.jobs(self.peer.enqueues), self.prepare()
        before = self.backend.usage()
        seconds = self.step("enqueue", jobs, variables)["seconds"]
        return {
            "enqueue_jobs": jobs,
            "enqueue_seconds": seconds,
            "enqueue_server": self.used_since(before, jobs),
        }

    def drain(self, variables: dict[str, str], jobs: int, queues: int = 1) -> Figures:
        """Return the time of a drain, from the first handler call until no job is left in the store."""
        empty = self.backend.size()
        self.step("enqueue", jobs, variables)
        waiting = self.backend.size()
        with (
            self.jobs_left(variables, queues) as left,
            Worker(self.environment.worker(queues), variables, "work", jobs) as worker,
        ):
            first = worker.wait_for("first")["first"]
            cpu, before = worker.cpu_us(), self.backend.usage()
            end = self.end_of_drain(worker, left)
            used = worker.cpu_us() - cpu
            server = self.used_since(before, jobs)
        return {
            "drain_jobs": jobs,
            "drain_seconds": (end - first) / 1e9,
            "worker_us": used / jobs,
            "drain_server": server,
            "waiting_bytes": _per_job(empty, waiting, jobs),
        }

    @contextmanager
    def jobs_left(self, variables: dict[str, str], queues: int) -> Iterator[Callable[[], bool] | None]:
        """Yield a function that returns whether jobs are left in the store, or None if none can."""
        names = queue_names(queues)
        if self.peer.runtime == "dibs":
            with DibsJobs(variables["PEER_URL"], names) as dibs_jobs:
                yield dibs_jobs.left
        else:
            yield partial(self.backend.left, self.peer.left, names) if self.peer.left else None

    def end_of_drain(self, worker: Worker, left: Callable[[], bool] | None) -> int:
        """Return the time in ns at which the last job is acknowledged."""
        if self.peer.reports_end:
            return int(worker.wait_for("settled")["settled"])
        last = int(worker.wait_for("last")["last"])
        if left is None:
            return last
        while left():
            time.sleep(LOOK)
        return time.monotonic_ns()

    def drain_in_one_process(self) -> Figures:
        """Return the drain of a process that also enqueued the jobs."""
        jobs, variables = self.jobs(self.peer.line), self.prepare()
        with Worker(self.environment.program(), variables, "work", jobs) as worker:
            first = worker.wait_for("first")["first"]
            cpu = worker.cpu_us()
            end = self.end_of_drain(worker, None)
            used = worker.cpu_us() - cpu
        return {"drain_jobs": jobs, "drain_seconds": (end - first) / 1e9, "worker_us": used / jobs}

    def single(self) -> Figures:
        """Return the rates of single enqueues, one after the other."""
        figures: Figures = {}
        steps = {"single": "blocking" if self.peer.blocking else "awaited"}
        if self.peer.both:
            steps["blocking"] = "blocking"
        variables = self.prepare()
        for step, name in steps.items():
            answer = self.step(step, self.effort.single_ms, variables)
            figures[name] = answer["per_second"]
        return figures

    def pickup(self, variables: dict[str, str], queues: int = 1) -> Figures:
        """Return the ms from an enqueue to its handler in an idle worker, and what an idle worker uses."""
        count = WARM_UP + self.effort.latency_jobs
        with Worker(self.environment.worker(queues), variables, "receive", count) as worker:
            sender = Sender(self.environment.program(), variables, count)
            worker.wait_for("first")
            time.sleep(0.5)
            before, cpu = self.backend.usage(), worker.cpu_us()
            time.sleep(self.effort.idle)
            idle = self.used_since(before, self.effort.idle)
            idle_cpu = (worker.cpu_us() - cpu) / self.effort.idle
            sender.go()
            times = worker.wait_for("ms")["ms"]
        return {"pickup_ms": _percentiles(times), "idle_server": idle, "idle_worker_us": idle_cpu}

    def result(self, variables: dict[str, str]) -> Figures:
        """Return the ms from an enqueue to its result."""
        count, variables = WARM_UP + self.effort.latency_jobs, {**variables, "PEER_RESULTS": "1"}
        with Worker(self.environment.worker(1), variables, "work", count):
            times = self.step("result", count, variables)["ms"]
        return {"result_ms": _percentiles(times)}

    def kept_bytes(self) -> float | None:
        """Return the bytes that a kept completed job takes."""
        jobs, variables = self.effort.kept_jobs, self.prepare(PEER_KEEP="3600")
        empty = self.backend.size(compact=True)
        self.step("enqueue", jobs, variables)
        with (
            self.jobs_left(variables, 1) as left,
            Worker(self.environment.worker(1), variables, "work", jobs) as worker,
        ):
            self.end_of_drain(worker, left)
        return _per_job(empty, self.backend.size(compact=True), jobs)

    def many_queues(self, queues: int) -> Figures:
        """Return the pick-up and the drain with many queues; peers drain half of their line."""
        variables = self.prepare(queues)
        figures = self.pickup(variables, queues)
        jobs = self.jobs(self.peer.line // (1 if self.peer.runtime == "dibs" else 2))
        return figures | self.drain(variables, jobs, queues)

    def prepare(self, queues: int = 1, **more: str) -> dict[str, str]:
        """Empty the backend, run the step `prepare`, and return the variables of the next step."""
        variables = {
            **os.environ,
            **dict(self.peer.environment),
            "PEER_URL": self.backend.reset(),
            "PEER_QUEUES": str(queues),
            **more,
        }
        variables["DIBS_URL"] = variables["PEER_URL"]
        if self.peer.prepares or (self.peer.runtime == "dibs" and self.peer.kind != "memory"):
            self.step("prepare", 0, variables)
        return variables

    def step(self, step: str, count: int, variables: dict[str, str]) -> dict[str, Any]:
        return run_step(self.environment.program(), variables, step, count)

    def used_since(self, before: Usage | None, divisor: float) -> dict[str, float | None] | None:
        after = self.backend.usage()
        return asdict(after.per_job(before, divisor)) if before and after else None


def _per_job(before: int | None, after: int | None, jobs: int) -> float | None:
    return None if before is None or after is None else (after - before) / jobs


def _percentiles(times: list[float]) -> tuple[float, float]:
    """Return p50 and p99 of the jobs after the warm-up."""
    percentiles = quantiles(times[WARM_UP:], n=100)
    return percentiles[49], percentiles[98]
