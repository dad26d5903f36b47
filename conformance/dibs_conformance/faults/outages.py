"""Level L4: servers that are killed, full or read-only. The tests start the servers."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from attrs import define, evolve, field

from dibs.errors import DibsError
from dibs.storage.registry import parse_scheme
from dibs_conformance.concurrent.levels import RoundActions, manual_clock_gap, random_round, random_setup
from dibs_conformance.concurrent.linearize import linearize, timeline
from dibs_conformance.concurrent.thread_clients import ThreadClients, thread_clients
from dibs_conformance.crashes.scenes import SECTION
from dibs_conformance.report import Findings, LawFailure, SkippedTest
from dibs_conformance.report.values import law_report, merge_findings
from dibs_conformance.servers import (
    PostgresServer,
    RedisServer,
    ServerUnavailable,
    find_postgres,
    start_redis,
)
from dibs_conformance.servers.postgres import FAST
from dibs_conformance.servers.processes import STARTUP_SECONDS, Server, make, wait_until
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs import remember
from dibs_conformance.verbs.actions import (
    GRANTS,
    IDS,
    START,
    ClientAction,
    ClientCall,
    ClientState,
    Program,
    Round,
    Snapshot,
)
from dibs_conformance.verbs.enqueue import LARGE_BYTES, LARGE_DATA

#: Limit of a file's size in bytes. A WAL segment of Postgres (16 MiB) must fit.
LARGEST_FILE: Final = 18 * 1024 * 1024
UNREACHABLE: Final = ("127.0.0.1", 1)


class BreakableServer(ABC):
    """A server that the tests fill, restrict and restart."""

    #: Bytes to enqueue until a filled server is full; 0 if it is full immediately.
    capacity: int

    def __init__(self, server: Server, url: str, name: str) -> None:
        self.process, self.url, self.name = server, url, name

    @abstractmethod
    def fill(self) -> None:
        """Make the server refuse to store more data (see `capacity`)."""

    @abstractmethod
    def free_space(self) -> None:
        """Undo `fill`."""

    @abstractmethod
    def set_read_only(self) -> None:
        """Make the server refuse all writes."""

    @abstractmethod
    def set_writable(self) -> None:
        """Allow writes again."""

    def flush_scripts(self) -> bool:
        """Flush cached scripts. Return False if the server has none."""
        return False


class BreakableRedis(BreakableServer):
    """A Redis that writes and syncs every command to its append-only file before it replies."""

    capacity = 0

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server, server.url, f"Redis {server.version}")
        self._execute = server.execute
        self._forget_code = server.forget_code

    def fill(self) -> None:
        self._execute("CONFIG", "SET", "maxmemory", 1)

    def free_space(self) -> None:
        self._execute("CONFIG", "SET", "maxmemory", 0)

    def set_read_only(self) -> None:
        self._execute("REPLICAOF", *UNREACHABLE)

    def set_writable(self) -> None:
        self._execute("REPLICAOF", "NO", "ONE")

    def flush_scripts(self) -> bool:
        self._forget_code()
        return True


class FileLimitedPostgres(PostgresServer):
    """A Postgres that can be started with a limit on the size of its files."""

    limited = False

    def command(self) -> Sequence[str]:
        if not self.limited:
            return super().command()
        # `ulimit -f` counts blocks of 512 bytes in every POSIX shell. A soft limit needs no privilege.
        limit = f'ulimit -S -f {LARGEST_FILE // 512} && exec "$@"'
        return ["/bin/sh", "-c", limit, "sh", *super().command()]


class BreakablePostgres(BreakableServer):
    """A Postgres whose file sizes can be limited and whose transactions can be made read-only."""

    capacity = LARGEST_FILE

    def __init__(self, server: FileLimitedPostgres) -> None:
        super().__init__(server, server.url, f"Postgres {server.version}")
        self._postgres = server

    def fill(self) -> None:
        self._restart(limited=True)

    def free_space(self) -> None:
        self._restart(limited=False)

    def _restart(self, *, limited: bool) -> None:
        self._postgres.limited = limited
        self._postgres.stop()
        self._postgres.start()

    def set_read_only(self) -> None:
        self._write_setting("default_transaction_read_only = on\n")
        self._wait_for_setting("on")

    def set_writable(self) -> None:
        self._write_setting("")
        self._wait_for_setting("off")

    def _wait_for_setting(self, value: str) -> None:
        """Wait until new connections have this value: the server reloads its settings with a delay."""
        import psycopg  # noqa: PLC0415 - needed for Postgres only, whose storage requires psycopg, too

        with psycopg.connect(self.url, autocommit=True) as connection:

            def is_set() -> bool:
                return connection.execute("SHOW default_transaction_read_only").fetchone() == (value,)

            if not wait_until(is_set, STARTUP_SECONDS):
                raise TimeoutError(f"Postgres did not apply default_transaction_read_only = {value}")

    def _write_setting(self, line: str) -> None:
        (self._postgres.data / "postgresql.auto.conf").write_text(line)
        os.kill(self.process.pid, signal.SIGHUP)


def start_breakable_redis() -> BreakableServer:
    return BreakableRedis(start_redis(appendonly="yes", appendfsync="always"))


def start_breakable_postgres() -> BreakableServer:
    server = FileLimitedPostgres(find_postgres(), FAST)
    return BreakablePostgres(make(server, server.initialise, server.start))


STARTERS: Final[dict[str, Callable[[], BreakableServer]]] = {
    "redis": start_breakable_redis,
    "postgresql": start_breakable_postgres,
    "postgres": start_breakable_postgres,
}


def starter_for(target: object) -> Callable[[], BreakableServer] | None:
    """Return the function that starts a server of the target's kind, or None."""
    return STARTERS.get(parse_scheme(target)) if isinstance(target, str) else None


@contextmanager
def started_server(start: Callable[[], BreakableServer]) -> Iterator[BreakableServer]:
    """Start a server, and remove it with its data at the end. Raises ServerUnavailable."""
    server = start()
    try:
        yield server
    finally:
        server.process.remove()


CLIENTS = 3
#: Seconds in which a recovered server must answer.
TIMEOUT = 60.0
#: The outage starts within this number of seconds after the round began.
MAX_DELAY = 0.02


def do_nothing(_: object) -> None: ...


@define
class ServerOutage:
    """One kind of server fault, with the law it tests."""

    law: str
    sentence: str
    fault: str
    #: Called before the clients start. `during` is called while they work, and `after` when they are done.
    before: Callable[[OutageRunner], None] = do_nothing
    during: Callable[[BreakableServer, Random], None] | None = None
    after: Callable[[BreakableServer], None] = do_nothing
    #: True if clients also enqueue payloads too large for a full server.
    large: bool = False
    #: True if clients must not notice the outage: a refused or unanswered call is then a failure.
    unnoticed: bool = False
    #: True if the server must refuse calls during the outage; otherwise the outage was not tested.
    refuses: bool = False


def kill_server(server: BreakableServer, random: Random) -> None:
    time.sleep(random.random() * MAX_DELAY)
    server.process.kill()
    server.process.start()


def flush_scripts(server: BreakableServer, random: Random) -> None:
    for _ in range(3):
        time.sleep(random.random() * MAX_DELAY / 3)
        server.flush_scripts()


RESTART = ServerOutage(
    "accepted is kept through a restart",
    "Calls answered before the server is killed survive its restart, and no call takes effect by half.",
    "server killed",
    during=kill_server,
)
FULL = ServerOutage(
    "a full server refuses whole",
    "A full server refuses calls without effect, and works again when it has space.",
    "server full",
    before=lambda runner: runner.fill_up(),
    after=lambda server: server.free_space(),
    large=True,
    refuses=True,
)
READ_ONLY = ServerOutage(
    "a read-only server refuses whole",
    "A read-only server refuses calls without effect, and works again when it is writable.",
    "server read-only",
    before=lambda runner: runner.server.set_read_only(),
    refuses=True,
    after=lambda server: server.set_writable(),
)
SCRIPTS_FLUSHED = ServerOutage(
    "what a server forgets is told again",
    "Scripts flushed from the server are loaded again, and callers do not notice.",
    "scripts flushed",
    during=flush_scripts,
    unnoticed=True,
)


@define
class OutageRunner:
    """The runner of histories on a server, with one outage in each."""

    server: BreakableServer
    clients: ThreadClients
    seed: int
    histories: int = 0
    calls: int = 0
    faults: dict[str, int] = field(factory=dict)
    #: Number of calls refused during outages.
    refused: int = 0

    def run(self, outage: ServerOutage) -> LawFailure | None:
        """Run one history: a setup, a round with the outage, a round after it. Return a failure or None."""
        self.histories += 1
        random = Random(self.seed + self.histories)
        queue, now = f"q{self.histories}", START + 10_000 * self.histories
        state, rounds = ClientState(), []
        for phase in ("before", "during", "after"):
            if phase == "during":
                outage.before(self)
            programs = [
                Program(actions, queue, state, now) for actions in self._actions_for(phase, outage, random)
            ]
            calls = self.clients.run_round(programs, self.seed, during=self._during(phase, outage, random))
            if phase == "during":
                outage.after(self.server)
                self._count_fault(outage, calls)
            for call in sorted(calls, key=lambda call: call.returned):
                remember(state, call)
                now = max(now, call.now)
            rounds.append(
                Round(calls=calls, snapshot=self._stable_snapshot(queue, now, log=phase == "after"))
            )
        return self._check(outage, queue, rounds)

    def _actions_for(self, phase: str, outage: ServerOutage, random: Random) -> RoundActions:
        """Return the actions for each client. After the outage, clients start with new leases."""
        if phase == "before":
            return (random_setup(random),)
        round_actions = random_round(random, CLIENTS)
        if phase == "after":
            return tuple((*GRANTS, *actions) for actions in round_actions)
        return (
            tuple((ClientAction(operation="enqueue", data=LARGE_DATA), *actions) for actions in round_actions)
            if outage.large
            else round_actions
        )

    def _during(self, phase: str, outage: ServerOutage, random: Random) -> Callable[[], None] | None:
        during = outage.during if phase == "during" else None
        return None if during is None else lambda: during(self.server, random)

    def _count_fault(self, outage: ServerOutage, calls: list[ClientCall]) -> None:
        self.faults[outage.fault] = self.faults.get(outage.fault, 0) + 1
        self.refused += sum(call.completion == "refused" for call in calls)

    def _stable_snapshot(self, queue: str, now: int, *, log: bool) -> Snapshot:
        """Read until two snapshots are equal, and retry while the server does not answer."""
        end = time.monotonic() + TIMEOUT
        previous: Snapshot | None = None
        while True:
            try:
                latest = self.clients.snapshot(queue, IDS, now, log=log)
                if latest == previous:
                    return latest
                previous = latest
            except DibsError:
                if time.monotonic() > end:
                    raise

    def _check(self, outage: ServerOutage, queue: str, rounds: list[Round]) -> LawFailure | None:
        self.calls += sum(len(round_.calls) for round_ in rounds)
        failed = [call for call in rounds[1].calls if call.completion in ("unknown", "refused")]
        if outage.unnoticed and failed:
            why = f"{failed[0].operation} was {failed[0].completion}: {failed[0].answer}"
            return LawFailure(law=outage.law, why=why, story=timeline(rounds))
        result = linearize(rounds, queue)
        return (
            None
            if result.linearizable
            else LawFailure(law=outage.law, why=result.why, story=timeline(rounds))
        )

    def findings(self, outage: ServerOutage, failure: LawFailure | None) -> Findings:
        met = self.refused if outage.refuses else self.faults.get(outage.fault, 0)
        law = law_report(outage.law, SECTION, outage.sentence, met, broken=failure is not None)
        return Findings(
            histories=self.histories,
            events=self.calls,
            faults=dict(self.faults),
            laws=(law,),
            failures=(failure,) if failure is not None else (),
        )

    def fill_up(self) -> None:
        """Limit the server's space, and enqueue large jobs until one is refused."""
        self.server.fill()
        for number in range(2 + self.server.capacity // LARGE_BYTES):
            program = Program(
                (ClientAction(operation="enqueue", ids=(f"{number}",), data=LARGE_DATA),),
                "full",
                ClientState(),
                START,
            )
            [call] = self.clients.run_round([program], self.seed)
            if call.completion == "refused":
                return


#: Histories per kind of outage, even if the time is over.
MIN_HISTORIES = 3


def servers_that_fail(plan: LevelPlan) -> Findings:
    """Run L4: one kind of outage after the other, each with its share of the budget."""
    if not plan.claims.manual_clock:
        return Findings(untested=(manual_clock_gap(),))
    start = starter_for(plan.locations.target)
    if start is None:
        why = "the kit cannot start a server of this kind; a storage without a server can reach L3"
        return Findings(untested=(SkippedTest(name="server faults", why=why),))
    try:
        with started_server(start) as server:
            return run_outages(server, plan)
    except ServerUnavailable as error:
        return Findings(untested=(SkippedTest(name="server faults", why=str(error)),))


def run_outages(server: BreakableServer, plan: LevelPlan) -> Findings:
    locations = Locations(server.url)
    found = Findings(spared=own_server_gap(server))
    plan.sources.append(lambda: found)
    outages = [RESTART, FULL, READ_ONLY, *([SCRIPTS_FLUSHED] if server.flush_scripts() else ())]
    ends = time.monotonic() + (plan.budget if plan.examples is None else 0.0)
    for at, outage in enumerate(outages):
        until = time.monotonic() + max(0.0, ends - time.monotonic()) / (len(outages) - at)
        found = merge_findings(
            found, run_outage(server, locations, outage, evolve(plan, locations=locations), until)
        )
        if found.failures:
            break
    return found


def own_server_gap(server: BreakableServer) -> tuple[SkippedTest, ...]:
    why = f"faults were injected into {server.name}, started for the test; the target's server is not touched"
    return (SkippedTest(name="the target's own server", why=why),)


def run_outage(
    server: BreakableServer, locations: Locations, outage: ServerOutage, plan: LevelPlan, until: float
) -> Findings:
    """Run histories with one kind of outage until the deadline `until` or the first failure."""
    with thread_clients(locations, CLIENTS, scheduled=False) as clients:
        runner, failure = OutageRunner(server, clients, plan.seed), None
        min_histories = max(MIN_HISTORIES, plan.examples or 0)
        while failure is None and (runner.histories < min_histories or time.monotonic() < until):
            failure = runner.run(outage)
        return runner.findings(outage, failure)
