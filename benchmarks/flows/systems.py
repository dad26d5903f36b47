"""The systems of the comparison, and the commands that run their programs. The programs hold the settings."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from benchmarks.peers.environments import Environment, find_node
from benchmarks.peers.systems import Peer

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
