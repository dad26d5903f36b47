"""The systems of the comparison: versions, servers and numbers of jobs. Their programs hold the settings."""

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
    #: Jobs of a full run. The system needs about a second for them.
    jobs: int
    #: True if the program has a step `prepare`, which creates tables.
    prepares: bool = False
    #: True if another process can run the jobs; the pick-up latency needs one.
    multi_process: bool = True
    #: Environment variables of the program.
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def runtime(self) -> Literal["dibs", "python", "node"]:
        """Return the runtime of the program; "dibs" is the Python that runs the benchmarks."""
        if not self.requirements:
            return "dibs"
        return "node" if self.program.endswith(".mjs") else "python"


#: Keep no outcomes of completed jobs, as peers without results.
NOT_KEPT: Final = (("PEER_KEEP", "0"),)
AN_HOUR: Final = (("PEER_KEEP", "3600"),)


def dibs_peers(kind: Kind, jobs: int) -> tuple[Peer, Peer]:
    """Return dibs without outcomes of completed jobs, and dibs with its default of one hour."""
    without_outcomes = Peer(
        name="dibs",
        kind=kind,
        program="dibs_peer.py",
        jobs=jobs,
        environment=NOT_KEPT,
        multi_process=kind != "memory",
    )
    return without_outcomes, evolve(without_outcomes, name="dibs, 1 h", environment=AN_HOUR)


def redis_peer(name: str, program: str, jobs: int, *requirements: str) -> Peer:
    return Peer(name=name, kind="redis", program=program, jobs=jobs, requirements=requirements)


def postgres_peer(name: str, program: str, jobs: int, *requirements: str) -> Peer:
    return Peer(
        name=name, kind="postgresql", program=program, jobs=jobs, requirements=requirements, prepares=True
    )


_UVLOOP: Final = "uvloop==0.23.0"
PEERS: Final[tuple[Peer, ...]] = (
    *dibs_peers("redis", 20_000),
    redis_peer("bee-queue", "bee_queue_peer.mjs", 20_000, "bee-queue@2.0.0"),
    redis_peer("bullmq", "bullmq_peer.mjs", 20_000, "bullmq@6.7.0", "ioredis"),
    redis_peer("platformatic", "platformatic_peer.mjs", 10_000, "@platformatic/job-queue@0.5.0", "iovalkey"),
    redis_peer("dramatiq", "dramatiq_peer.py", 10_000, "dramatiq[redis]==2.2.1"),
    redis_peer("taskiq", "taskiq_peer.py", 6_000, "taskiq-redis==1.2.4", _UVLOOP),
    redis_peer("saq", "saq_peer.py", 5_000, "saq[redis,hiredis]==0.26.4", "typing-extensions", _UVLOOP),
    redis_peer("huey", "huey_peer.py", 5_000, "huey==3.5.4", "redis[hiredis]"),
    redis_peer("arq", "arq_peer.py", 5_000, "arq==0.28.0", _UVLOOP),
    redis_peer("streaq", "streaq_peer.py", 3_000, "streaq==7.2.0", _UVLOOP),
    redis_peer("celery", "celery_peer.py", 2_500, "celery[redis]==5.7.0"),
    redis_peer("rq", "rq_peer.py", 800, "rq==3.0.0", "redis[hiredis]"),
    *dibs_peers("postgresql", 20_000),
    postgres_peer("graphile-worker", "graphile_peer.mjs", 20_000, "graphile-worker@0.18.0"),
    postgres_peer("pgqueuer", "pgqueuer_peer.py", 20_000, "pgqueuer[asyncpg]==1.6.0", _UVLOOP),
    postgres_peer(
        "procrastinate", "procrastinate_peer.py", 1_500, "procrastinate==3.10.0", "psycopg[binary]"
    ),
    *dibs_peers("file", 20_000),
    Peer(
        name="litequeue",
        kind="file",
        program="litequeue_peer.py",
        jobs=5_000,
        requirements=("litequeue==0.9",),
    ),
    Peer(
        name="persist-queue",
        kind="file",
        program="persist_queue_peer.py",
        jobs=5_000,
        requirements=("persist-queue==1.1.0",),
        multi_process=False,
    ),
    *dibs_peers("memory", 50_000),
    Peer(
        name="huey",
        kind="memory",
        program="huey_peer.py",
        jobs=50_000,
        requirements=("huey==3.5.4",),
        multi_process=False,
    ),
)
