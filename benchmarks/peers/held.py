"""Compare queues on Postgres while another session holds an old snapshot: `python -m benchmarks.peers.held`.

A report, a `pg_dump` or a standby with hot_standby_feedback keeps Postgres from removing dead rows, and a
worker that looks for the next job may have to step over all jobs that have passed since. Jobs pass through a
queue in parts of 48,000, which is a minute at 800 jobs a second. After some of them, jobs are enqueued one by
one for an idle worker. The table has the time until their handlers begin, and the CPU time of the server for
each of them, and for each job of the last part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from attrs import frozen
from rich.console import Console
from rich.table import Table

from benchmarks.peers.__main__ import ENVIRONMENTS, select_peers
from benchmarks.peers.backends import PostgresBackend, start_backends
from benchmarks.peers.environments import Environment, PeerUnavailable
from benchmarks.peers.measure import WARM_UP, Effort, Run

#: Jobs of a part: a minute at 800 jobs a second.
PART: Final = 48_000
#: The minutes after which the jobs of an idle worker are timed.
MINUTES: Final = (1, 5, 15, 30)
#: Jobs of a reading.
EFFORT: Final = Effort(latency_jobs=300, idle=1.0)


@frozen
class Reading:
    """The state of a queue after a number of minutes; 0 is before the snapshot, None after its end."""

    minutes: int | None
    #: Time from the enqueue to the handler, ms: the median, and the 99th percentile.
    pickup_ms: tuple[float, float]
    #: CPU time of the server for a job that is enqueued alone, and for a job of a drained part, µs.
    single_us: float
    drain_us: float


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot, as a report of one transaction does."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


@frozen
class HeldRun:
    """The measurement of one system."""

    run: Run

    def measure(self, minutes: tuple[int, ...]) -> Iterator[Reading]:
        """Yield a reading before, under and after the snapshot. Raises PeerUnavailable."""
        variables = self.run.prepare()
        yield self._read(0, variables, self._pass_through(variables, 1))
        passed = 0
        with old_snapshot(variables["PEER_URL"]):
            for number in minutes:
                drain_us = self._pass_through(variables, number - passed)
                passed = number
                yield self._read(number, variables, drain_us)
        yield self._read(None, variables, self._pass_through(variables, 1))

    def _pass_through(self, variables: dict[str, str], parts: int) -> float:
        """Enqueue and drain a number of parts. Return the CPU time of the server for a job of the last."""
        used = 0.0
        for _ in range(parts):
            used = self.run.drain(variables, PART)["drain_server"]["cpu_us"]
        return used

    def _read(self, minutes: int | None, variables: dict[str, str], drain_us: float) -> Reading:
        before = self.run.backend.usage()
        pickup = self.run.pickup(variables)["pickup_ms"]
        after = self.run.backend.usage()
        assert before is not None
        assert after is not None
        jobs = WARM_UP + self.run.effort.latency_jobs
        return Reading(minutes, pickup, (after.cpu_us - before.cpu_us) / jobs, drain_us)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.held", description=__doc__)
    parser.add_argument("names", nargs="*", help="measure only these systems, and dibs")
    parser.add_argument("--minutes", type=int, nargs="+", default=MINUTES, help="when to read")
    arguments = parser.parse_args()
    console = Console(width=100)
    table = Table("system", "minutes", "pick-up, ms: p50", "p99", "server, us: single", "drained")
    with start_backends() as (by_kind, _):
        backend = by_kind["postgresql"]
        assert isinstance(backend, PostgresBackend)
        for peer in select_peers(arguments.names, ["postgresql"]):
            environment = Environment(ENVIRONMENTS, peer)
            try:
                environment.install()
                for found in HeldRun(Run(peer, environment, backend, EFFORT)).measure(
                    tuple(arguments.minutes)
                ):
                    row = _row(peer.name, found)
                    console.print(*row, highlight=False)
                    table.add_row(*row)
            except PeerUnavailable as reason:
                console.print(f"{peer.name}: stopped: {reason}", highlight=False)
                table.add_row(peer.name, "stopped", "", "", "", "")
    console.print(table)


def _row(name: str, found: Reading) -> tuple[str, ...]:
    when = {0: "before", None: "after"}.get(found.minutes, str(found.minutes))
    median, p99 = found.pickup_ms
    return name, when, f"{median:.1f}", f"{p99:.1f}", f"{found.single_us:.0f}", f"{found.drain_us:.1f}"


if __name__ == "__main__":
    main()
