"""The systems of the comparison: versions, servers and numbers of jobs. Their programs hold the settings.

River (Go) is not measured: its modules come from the Go module proxy, and the pip and npm packages that
install everything else do not have them.
"""

from __future__ import annotations

from typing import Final, Literal

from attrs import evolve, frozen

Kind = Literal["redis", "postgresql", "file", "memory"]


@frozen(kw_only=True)
class Peer:
    """A system of the comparison on one kind of server."""

    name: str
    kind: Kind
    #: A file in programs/. A .py file runs on Python, a .mjs file on Node.
    program: str
    #: Pinned requirements for pip or npm. Empty for dibs, which runs in the environment of the benchmarks.
    requirements: tuple[str, ...] = ()
    #: Jobs of a bulk enqueue. The fast systems need at least 5 s for them on a quiet machine.
    enqueues: int
    #: Jobs that wait when a drain begins. It is the same number for all fast systems of a kind.
    line: int
    #: True for a system that is far slower: it has fewer jobs, fewer figures and a table of its own.
    behind: bool = False
    #: True for a system that is measured in the first round only.
    once: bool = False
    #: True if the program has a step `prepare`, which creates tables.
    prepares: bool = False
    #: True if another process can run the jobs; the pick-up latency needs one.
    multi_process: bool = True
    #: True if the program has a step `result`, which waits for the results of jobs.
    results: bool = False
    #: True if the single enqueue of the program blocks its thread; other programs await it.
    blocking: bool = False
    #: True if the program also has the step `blocking`, for its second API.
    both: bool = False
    #: True if the program can keep completed jobs.
    keeps: bool = False
    #: True if the program reports when its last job is acknowledged. Otherwise the drain ends when `left`
    #: finds no job or, for a system without acknowledgements, with the last call of the handler.
    reports_end: bool = False
    #: Numbers of queues of the further drains.
    queues: tuple[int, ...] = ()
    #: Keys of Redis that are empty, or SQL expressions that are false, when no job is left. `{queue}` is the
    #: name of a queue.
    left: tuple[str, ...] = ()
    #: Environment variables of the program.
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def runtime(self) -> Literal["dibs", "python", "node"]:
        """Return the runtime of the program; "dibs" is the Python that runs the benchmarks."""
        if not self.requirements:
            return "dibs"
        return "node" if self.program.endswith(".mjs") else "python"

    @property
    def key(self) -> str:
        """Return the name of the system in the results."""
        return f"{self.kind}: {self.name}"


#: Keep no outcomes of completed jobs, as peers without results.
NOT_KEPT: Final = (("PEER_KEEP", "0"),)
AN_HOUR: Final = (("PEER_KEEP", "3600"),)
#: The default settings of dibs: outcomes for an hour, and the event loop of asyncio in the producer.
DEFAULTS: Final = (("PEER_DEFAULTS", "1"),)

#: The jobs that wait when the drain of a fast system begins.
REDIS_LINE: Final = 700_000
POSTGRES_LINE: Final = 450_000
FILE_LINE: Final = 200_000
MEMORY_LINE: Final = 750_000
MANY_QUEUES: Final = (10, 100)


def dibs_peers(kind: Kind, enqueues: int, line: int, *, defaults: bool = False) -> tuple[Peer, ...]:
    """Return dibs without outcomes of completed jobs, with its default of one hour, and with all defaults."""
    server, separate = kind in ("redis", "postgresql"), kind != "memory"
    tuned = Peer(
        name="dibs",
        kind=kind,
        program="dibs_peer.py",
        enqueues=enqueues,
        line=line,
        environment=NOT_KEPT,
        multi_process=separate,
        results=separate,
        both=separate,
        reports_end=kind == "memory",
        queues=MANY_QUEUES if server else (),
    )
    kept = evolve(tuned, name="dibs, 1 h", environment=AN_HOUR, queues=(), keeps=server)
    if not defaults:
        return tuned, kept
    return tuned, kept, evolve(kept, name="dibs, defaults", environment=DEFAULTS, keeps=False, once=True)


_UVLOOP: Final = "uvloop==0.23.0"
_REDIS: Final[tuple[Peer, ...]] = (
    *dibs_peers("redis", 1_200_000, REDIS_LINE, defaults=True),
    Peer(
        name="bee-queue",
        kind="redis",
        program="bee_queue_peer.mjs",
        requirements=("bee-queue@2.0.0",),
        enqueues=950_000,
        line=REDIS_LINE,
        results=True,
        keeps=True,
        queues=MANY_QUEUES,
        left=("bq:{queue}:waiting", "bq:{queue}:active"),
    ),
    Peer(
        name="bullmq",
        kind="redis",
        program="bullmq_peer.mjs",
        requirements=("bullmq@6.7.0", "ioredis@6.0.0"),
        enqueues=240_000,
        line=REDIS_LINE,
        results=True,
        keeps=True,
        queues=MANY_QUEUES,
        left=("bull:{queue}:wait", "bull:{queue}:active"),
    ),
    Peer(
        name="huey",
        kind="redis",
        program="huey_peer.py",
        requirements=("huey==3.5.4", "redis[hiredis]"),
        enqueues=85_000,
        line=24_000,
        results=True,
        blocking=True,
        left=("huey.redis.peers",),
    ),
)
_POSTGRES: Final[tuple[Peer, ...]] = (
    *dibs_peers("postgresql", 700_000, POSTGRES_LINE, defaults=True),
    Peer(
        name="graphile-worker",
        kind="postgresql",
        program="graphile_peer.mjs",
        requirements=("graphile-worker@0.18.0",),
        enqueues=300_000,
        line=POSTGRES_LINE,
        prepares=True,
        left=("EXISTS (SELECT FROM graphile_worker._private_jobs)",),
        # Without this variable it prints a line for each job.
        environment=(("NO_LOG_SUCCESS", "1"),),
    ),
    Peer(
        name="pgqueuer",
        kind="postgresql",
        program="pgqueuer_peer.py",
        requirements=("pgqueuer[asyncpg]==1.6.0", _UVLOOP),
        enqueues=420_000,
        line=200_000,
        prepares=True,
        keeps=True,
        queues=MANY_QUEUES,
        left=("EXISTS (SELECT FROM pgqueuer)",),
    ),
    Peer(
        name="pg-boss",
        kind="postgresql",
        program="pg_boss_peer.mjs",
        requirements=("pg-boss@12.38.0",),
        enqueues=340_000,
        line=POSTGRES_LINE,
        prepares=True,
        keeps=True,
        queues=MANY_QUEUES,
        left=("EXISTS (SELECT FROM pgboss.job WHERE state < 'completed')",),
    ),
    Peer(
        name="procrastinate",
        kind="postgresql",
        program="procrastinate_peer.py",
        requirements=("procrastinate==3.10.0", "psycopg[binary]"),
        enqueues=110_000,
        line=6_000,
        prepares=True,
        keeps=True,
        left=("EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",),
    ),
)
_FILES: Final[tuple[Peer, ...]] = (
    *dibs_peers("file", 700_000, FILE_LINE),
    Peer(
        name="litequeue",
        kind="file",
        program="litequeue_peer.py",
        requirements=("litequeue==0.9",),
        enqueues=180_000,
        line=15_000,
        blocking=True,
        reports_end=True,
    ),
    Peer(
        name="persist-queue",
        kind="file",
        program="persist_queue_peer.py",
        requirements=("persist-queue==1.1.0",),
        enqueues=5_000,
        line=5_000,
        behind=True,
        once=True,
        multi_process=False,
        blocking=True,
        reports_end=True,
    ),
)
_MEMORY: Final[tuple[Peer, ...]] = (
    *dibs_peers("memory", MEMORY_LINE, MEMORY_LINE),
    Peer(
        name="huey",
        kind="memory",
        program="huey_peer.py",
        requirements=("huey==3.5.4",),
        enqueues=MEMORY_LINE,
        line=MEMORY_LINE,
        multi_process=False,
    ),
)


def _behind(name: str, program: str, jobs: int, left: tuple[str, ...], *requirements: str) -> Peer:
    return Peer(
        name=name,
        kind="redis",
        program=program,
        requirements=requirements,
        enqueues=jobs,
        line=jobs,
        behind=True,
        once=True,
        blocking=name in ("dramatiq", "celery", "rq"),
        left=left,
    )


_BEHIND: Final[tuple[Peer, ...]] = (
    _behind("platformatic", "platformatic_peer.mjs", 20_000, (), "@platformatic/job-queue@0.5.0", "iovalkey"),
    _behind("dramatiq", "dramatiq_peer.py", 10_000, (), "dramatiq[redis]==2.2.1"),
    _behind("taskiq", "taskiq_peer.py", 8_000, (), "taskiq-redis==1.2.4", _UVLOOP),
    _behind("saq", "saq_peer.py", 6_000, (), "saq[redis,hiredis]==0.26.4", "typing-extensions", _UVLOOP),
    _behind("arq", "arq_peer.py", 5_000, (), "arq==0.28.0", _UVLOOP),
    _behind("streaq", "streaq_peer.py", 3_000, (), "streaq==7.2.0", _UVLOOP),
    _behind("celery", "celery_peer.py", 2_500, (), "celery[redis]==5.7.0"),
    _behind("rq", "rq_peer.py", 800, (), "rq==3.0.0", "redis[hiredis]"),
)
PEERS: Final[tuple[Peer, ...]] = (*_REDIS, *_POSTGRES, *_FILES, *_MEMORY, *_BEHIND)
