"""The systems of a comparison of flows, and the servers that they run on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal, Protocol

import psycopg
from attrs import define, field, frozen
from redis import Redis

from benchmarks.peers.backends import POSTGRES, PostgresBackend, RedisBackend
from benchmarks.peers.environments import Environment, find_node
from benchmarks.peers.systems import Peer
from dibs_conformance.servers import start_postgres, start_redis
from dibs_conformance.servers.processes import find_postgres

PROGRAMS: Final = Path(__file__).parent / "programs"
#: The installed packages of the systems. The comparison of queues uses the same folder.
ENVIRONMENTS: Final = Path(".bench-peers")


@frozen(kw_only=True)
class System:
    """A system with flows, on one kind of server."""

    name: str
    kind: Literal["redis", "postgresql"]
    #: A file in programs/.
    program: str
    #: Pinned requirements for pip or npm, the same as those of the comparison of queues. Empty for dibs.
    requirements: tuple[str, ...] = ()
    #: True if the program has a step `prepare`, which creates tables.
    prepares: bool = False
    #: Environment variables of the program.
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Return the name of the system in the results."""
        return f"{self.kind}: {self.name}"

    @property
    def environment(self) -> Environment:
        peer = Peer(
            name=self.name,
            kind=self.kind,
            program=self.program,
            requirements=self.requirements,
            enqueues=0,
            line=0,
        )
        return Environment(ENVIRONMENTS, peer)

    def install(self) -> None:
        """Install the requirements and copy the programs of Node. Raise PeerUnavailable on failure."""
        environment = self.environment
        environment.install()
        if environment.peer.runtime == "node":
            # Node looks for packages in the folder of the program.
            for program in PROGRAMS.glob("*.mjs"):
                shutil.copy(program, environment.folder)

    def command(self) -> list[str]:
        """Return the command of the steps `prepare` and `produce`."""
        environment, path = self.environment, str(PROGRAMS / self.program)
        match environment.peer.runtime:
            case "dibs":
                return [sys.executable, path]
            case "python":
                return [str(environment.folder / "bin" / "python"), path]
            case "node":
                return [find_node(environment.root), str(environment.folder / self.program)]

    def worker(self, number: int) -> list[str]:
        """Return the command that starts a worker of one process, as a user of the system starts it."""
        environment, module = self.environment, Path(self.program).stem
        match environment.peer.runtime:
            case "dibs":
                return [sys.executable, "-m", "dibs", "worker", f"{module}:app", "--processes", "1"]
            case "python":
                celery = str(environment.folder / "bin" / "celery")
                quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
                return [celery, "-A", module, "worker", "--pool", "solo", "-n", f"worker{number}", *quiet]
            case "node":
                return self.command()


_PG_BOSS: Final = ("pg-boss@12.38.0",)
SYSTEMS: Final[tuple[System, ...]] = (
    System(name="dibs", kind="redis", program="dibs_flows.py"),
    System(
        name="bullmq",
        kind="redis",
        program="bullmq_flows.mjs",
        requirements=("bullmq@6.7.0", "ioredis@6.0.0"),
    ),
    System(
        name="celery",
        kind="redis",
        program="celery_flows.py",
        requirements=("celery[redis]==5.7.0",),
    ),
    System(name="dibs", kind="postgresql", program="dibs_flows.py"),
    System(
        name="pg-boss",
        kind="postgresql",
        program="pg_boss_flows.mjs",
        requirements=_PG_BOSS,
        prepares=True,
    ),
    System(
        name="pg-boss, resolveFlow",
        kind="postgresql",
        program="pg_boss_flows.mjs",
        requirements=_PG_BOSS,
        prepares=True,
        variables=(("FLOW_RESOLVE", "1"),),
    ),
)


STATEMENTS: Final = "pg_stat_statements"


@frozen
class Requests:
    """The requests to a server since its start. A figure that the server does not report is None."""

    #: Reads from the sockets of clients by Redis; a pipeline is one read, or a few.
    reads: float | None = None
    #: Commands of Redis, including those that its scripts call.
    commands: float | None = None
    #: Statements that clients sent to Postgres.
    statements: float | None = None
    #: Transactions that Postgres committed, up to a second late.
    commits: float | None = None

    def per_node(self, before: Requests, nodes: int) -> Requests:
        """Return the requests since `before`, divided by `nodes`."""

        def part(now: float | None, then: float | None) -> float | None:
            return None if now is None or then is None else (now - then) / nodes

        return Requests(
            part(self.reads, before.reads),
            part(self.commands, before.commands),
            part(self.statements, before.statements),
            part(self.commits, before.commits),
        )


class FlowServer(Protocol):
    """A server that is emptied before each measurement."""

    def reset(self) -> str:
        """Delete all data and return the URL for the next measurement."""
        ...

    def requests(self) -> Requests:
        """Return the requests since the start, without those of this method."""
        ...


@define
class FlowRedis:
    """A Redis without persistence."""

    _url: str
    _backend: RedisBackend = field(init=False)
    _redis: Redis = field(init=False)
    _asked: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._backend = RedisBackend(self._url)
        self._redis = Redis.from_url(self._url)

    def reset(self) -> str:
        return self._backend.reset()

    def requests(self) -> Requests:
        info = self._redis.info("stats")
        self._asked += 1
        reads, commands = int(info["total_reads_processed"]), int(info["total_commands_processed"])
        return Requests(reads=reads - self._asked, commands=commands - self._asked)


@define
class FlowPostgres:
    """A Postgres that commits to disk, with pg_stat_statements if its extension is installed."""

    _url: str
    _backend: PostgresBackend
    _connection: psycopg.Connection = field(init=False)
    _has_statements: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Connect to another database than the systems, so that own statements are not counted."""
        self._connection = psycopg.connect(self._url, autocommit=True)
        libraries = self._connection.execute("SHOW shared_preload_libraries").fetchone()
        self._has_statements = libraries == (STATEMENTS,)
        if self._has_statements:
            self._connection.execute(f"CREATE EXTENSION {STATEMENTS}".encode())

    def reset(self) -> str:
        return self._backend.reset()

    def requests(self) -> Requests:
        commits = self._count(
            "SELECT coalesce(sum(xact_commit), 0) FROM pg_stat_database WHERE datname LIKE 'benchmark_%'"
        )
        if not self._has_statements:
            return Requests(commits=commits)
        statements = self._count(
            f"SELECT coalesce(sum(calls), 0) FROM {STATEMENTS} JOIN pg_database ON dbid = oid "  # noqa: S608
            "WHERE toplevel AND datname LIKE 'benchmark_%'"
        )
        return Requests(statements=statements, commits=commits)

    def _count(self, query: str) -> float:
        row = self._connection.execute(query.encode()).fetchone()
        return float(row[0]) if row else 0.0

    def close(self) -> None:
        self._connection.close()
        self._backend.close()


def postgres_settings() -> dict[str, str]:
    """Return the settings of Postgres, which load pg_stat_statements if this Postgres has it."""
    found = find_postgres().path
    controls = [
        *(found.parent / "share").rglob(f"{STATEMENTS}.control"),
        *Path("/usr/share/postgresql").glob(f"{found.parent.name}/extension/{STATEMENTS}.control"),
    ]
    return {**POSTGRES, **({"shared_preload_libraries": STATEMENTS} if controls else {})}


@contextmanager
def start_servers(kinds: set[str]) -> Iterator[tuple[dict[str, FlowServer], dict[str, str]]]:
    """Start the servers of these kinds. Yield them by kind, and their versions."""
    by_kind: dict[str, FlowServer] = {}
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        if "redis" in kinds:
            redis = stack.enter_context(start_redis())
            by_kind["redis"], versions["redis"] = FlowRedis(redis.url), redis.version
        if "postgresql" in kinds:
            postgres = stack.enter_context(start_postgres(**postgres_settings()))
            server = FlowPostgres(postgres.url, PostgresBackend(postgres))
            stack.callback(server.close)
            by_kind["postgresql"], versions["postgresql"] = server, postgres.version
        yield by_kind, versions
