"""Who takes part, in which version, on what: the settings are in each one's program."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

Kind = Literal["redis", "postgresql", "file", "memory"]


class Peer(Struct, frozen=True, kw_only=True):
    """A system that takes part."""

    name: str
    kind: Kind
    #: A file in programs/; .py runs on Python, .mjs on Node.
    program: str
    #: What is installed for it, pinned; empty for dibs, which runs where the benchmarks run.
    needs: tuple[str, ...] = ()
    #: Jobs of a full run: what it does in about a second.
    jobs: int
    #: Whether it makes its own tables first.
    prepares: bool = False
    #: Whether a job can be picked up by another process, so that a latency can be measured.
    shares: bool = True
    #: Environment variables of the program.
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def runtime(self) -> Literal["ours", "python", "node"]:
        """Return what runs its program."""
        if not self.needs:
            return "ours"
        return "node" if self.program.endswith(".mjs") else "python"


#: As peers without results do it, and as dibs does it unasked.
NOT_KEPT: Final = (("PEER_KEEP", "0"),)
AN_HOUR: Final = (("PEER_KEEP", "3600"),)


def ours(kind: Kind, jobs: int) -> tuple[Peer, Peer]:
    """Return dibs without outcomes of completed jobs, and with its default of an hour."""
    bare = Peer(
        name="dibs", kind=kind, program="ours.py", jobs=jobs, settings=NOT_KEPT, shares=kind != "memory"
    )
    return bare, msgspec.structs.replace(bare, name="dibs, 1 h", settings=AN_HOUR)


def on_redis(name: str, program: str, jobs: int, *needs: str) -> Peer:
    """Return a peer on Redis."""
    return Peer(name=name, kind="redis", program=program, jobs=jobs, needs=needs)


def on_postgres(name: str, program: str, jobs: int, *needs: str) -> Peer:
    """Return a peer on Postgres; each makes its own tables."""
    return Peer(name=name, kind="postgresql", program=program, jobs=jobs, needs=needs, prepares=True)


_UVLOOP: Final = "uvloop==0.23.0"
PEERS: Final[tuple[Peer, ...]] = (
    *ours("redis", 20_000),
    on_redis("bee-queue", "bee_queue_peer.mjs", 20_000, "bee-queue@2.0.0"),
    on_redis("bullmq", "bullmq_peer.mjs", 20_000, "bullmq@6.7.0", "ioredis"),
    on_redis("platformatic", "platformatic_peer.mjs", 10_000, "@platformatic/job-queue@0.5.0", "iovalkey"),
    on_redis("dramatiq", "dramatiq_peer.py", 10_000, "dramatiq[redis]==2.2.1"),
    on_redis("taskiq", "taskiq_peer.py", 6_000, "taskiq-redis==1.2.4", _UVLOOP),
    on_redis("saq", "saq_peer.py", 5_000, "saq[redis,hiredis]==0.26.4", "typing-extensions", _UVLOOP),
    on_redis("huey", "huey_peer.py", 5_000, "huey==3.5.4", "redis[hiredis]"),
    on_redis("arq", "arq_peer.py", 5_000, "arq==0.28.0", _UVLOOP),
    on_redis("streaq", "streaq_peer.py", 3_000, "streaq==7.2.0", _UVLOOP),
    on_redis("celery", "celery_peer.py", 2_500, "celery[redis]==5.7.0"),
    on_redis("rq", "rq_peer.py", 800, "rq==3.0.0", "redis[hiredis]"),
    *ours("postgresql", 20_000),
    on_postgres("graphile-worker", "graphile_peer.mjs", 20_000, "graphile-worker@0.18.0"),
    on_postgres("pgqueuer", "pgqueuer_peer.py", 20_000, "pgqueuer[asyncpg]==1.6.0", _UVLOOP),
    on_postgres("procrastinate", "procrastinate_peer.py", 1_500, "procrastinate==3.10.0", "psycopg[binary]"),
    *ours("file", 20_000),
    Peer(name="litequeue", kind="file", program="litequeue_peer.py", jobs=5_000, needs=("litequeue==0.9",)),
    Peer(
        name="persist-queue",
        kind="file",
        program="persist_queue_peer.py",
        jobs=5_000,
        needs=("persist-queue==1.1.0",),
        shares=False,
    ),
    *ours("memory", 50_000),
    Peer(
        name="huey", kind="memory", program="huey_peer.py", jobs=50_000, needs=("huey==3.5.4",), shares=False
    ),
)
