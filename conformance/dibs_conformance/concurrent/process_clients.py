"""Clients as processes, each with its own storage at a shared location. A process can be killed or stopped.

A process sends each call to its parent before the call and again when it returned. So calls in flight are
known even if the process is killed. Timestamps come from the machine's monotonic clock. Other processes,
whose clocks are an hour ahead and behind, read the storage's time in turn: a later reading must never be
smaller.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final, NoReturn, Self

from attrs import frozen

from dibs_conformance.concurrent.client import run_program, take_snapshot
from dibs_conformance.concurrent.linearize import call_text
from dibs_conformance.concurrent.scheduler import LineTracer, source_folders
from dibs_conformance.concurrent.thread_clients import close_all
from dibs_conformance.loop_runner import LIMITS, LoopRunner
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.exceptions import LAW, StorageFailed, describe_exit, exception_failure
from dibs_conformance.report.values import law_report
from dibs_conformance.sequential.clocks import SHIFT, shifted_clock
from dibs_conformance.target import LevelPlan, Locations, OpenedStorage, OpenStorage
from dibs_conformance.verbs.actions import ClientCall, Program, Snapshot

#: Seconds a process may take to answer.
TIMEOUT = 60.0
#: Seconds to wait after LIMITS.call, so that a process can report a call that hangs at an await.
GRACE = 3.0
#: Modules loaded once in the fork server that starts the clients.
PRELOADED = ["__main__", __name__]


@frozen
class SignalPoint:
    """An order to a process: send yourself `signal` right before storage line number `line` of a program."""

    signal: signal.Signals
    line: int


@frozen
class ProgramStats:
    """The number of storage lines that one program executed."""

    lines: int = 0


class ClientUnresponsive(StorageFailed):
    """A process neither answered nor exited in time."""

    def __init__(self, why: str) -> None:
        super().__init__(LawFailure(law=LAW, why=why))


def process_context() -> BaseContext:
    """Return the start method of client processes.

    This is a fork server with the code preloaded, or spawn on platforms without a fork server.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(PRELOADED)
    return forkserver


class Child:
    """A process that runs a function, and the pipe to it. The function gets the other end as last argument.

    An exception of the function is sent as a LawFailure, and the process ends.
    """

    def __init__(self, work: Callable[..., object], *args: object) -> None:
        self.pipe, theirs = process_context().Pipe()
        self.process: BaseProcess = process_context().Process(  # type: ignore[attr-defined]
            target=run_child, args=(work, *args, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(LIMITS.call)

    def next_message(self, what: str, timeout: float = TIMEOUT) -> Any:
        """Return the next message, or None after the last one.

        Raise StorageFailed for an exception of the process, and ClientUnresponsive if `what` is not done in
        time.
        """
        if not self.pipe.poll(timeout):
            raise ClientUnresponsive(f"{what} did not return within {timeout:g} s")
        try:
            message = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None
        if isinstance(message, LawFailure):
            raise StorageFailed(message)
        return message

    def receive(self, what: str, timeout: float = TIMEOUT) -> Any:
        """Return the next message. Raise StorageFailed also if the process ended without one."""
        message = self.next_message(what, timeout)
        if message is None:
            self.process.join(TIMEOUT)
            ending = describe_exit(self.process.exitcode)
            raise StorageFailed(LawFailure(law=LAW, why=f"{what}: the process ended {ending}"))
        return message

    def close(self, seconds: float) -> None:
        """Close the pipe, and kill the process if it does not end by itself."""
        self.pipe.close()
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
        self.process.join(TIMEOUT)


def run_child(work: Callable[..., object], *args: Any) -> None:
    try:
        work(*args)
    except Exception as error:  # noqa: BLE001 - the parent reports it
        with suppress(OSError):
            args[-1].send(exception_failure(error))


class ProcessClient:
    """The parent's handle of a client process."""

    def __init__(self, target: str | OpenStorage, location: str, name: str) -> None:
        self.name = name
        self._child = Child(run_programs, target, location, name)
        self._process = self._child.process
        self._calls: list[ClientCall] = []
        #: The counts of the last program.
        self.stats = ProgramStats()
        self.died = False
        self._running = True
        self._receive()

    def start(self, program: Program, fault: SignalPoint | None = None) -> None:
        """Send a program to the process. `wait` returns its calls."""
        if self.died:
            self.raise_death()
        self._calls, self._running = [], True
        self._child.pipe.send((program, fault))

    def wait(self, timeout: float | None = None) -> list[ClientCall]:
        """Wait until the program is done or the process is dead, and return its calls.

        Raise ClientUnresponsive if no message arrives for `timeout` seconds. The default is LIMITS.call and
        GRACE. Raise StorageFailed for an exception of the storage, and if the process ended by itself.
        """
        while self._running:
            self._receive(timeout)
        return self._calls

    def _receive(self, timeout: float | None = None) -> None:
        """Receive one message: the start or the end of a call, or the counts of a finished program."""
        limit = LIMITS.call + GRACE if timeout is None else timeout
        try:
            message = self._child.next_message(self._call_in_flight(), limit)
        except StorageFailed as failed:
            self._running = isinstance(failed, ClientUnresponsive)
            raise
        if message is None:
            self._running, self.died = False, True
            self._check_exit()
            return
        if isinstance(message, ProgramStats):
            self.stats, self._running = message, False
            return
        if self._calls and message.invoked == self._calls[-1].invoked:
            self._calls.pop()
        self._calls.append(message)

    def _call_in_flight(self) -> str:
        """Return the newest call as text, or "open" if the process has not opened its storage yet."""
        return call_text(self._calls[-1]) if self._calls else "open"

    def _check_exit(self) -> None:
        """Raise StorageFailed if the process exited by itself. The kit kills only with SIGKILL."""
        self._process.join(LIMITS.call)
        if self._process.exitcode != -signal.SIGKILL:
            self.raise_death()

    def raise_death(self) -> NoReturn:
        """Raise StorageFailed with the call during which the process ended."""
        ending = describe_exit(self._process.exitcode)
        why = f"{self._call_in_flight()}: the process of the client ended {ending} during the call"
        raise StorageFailed(LawFailure(law=LAW, why=why))

    @property
    def pid(self) -> int:
        assert self._process.pid is not None  # noqa: S101 - the process was started in __init__
        return self._process.pid

    def resume(self) -> None:
        """Send SIGCONT."""
        if self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped the process."""
        try:
            with open(f"/proc/{self._process.pid}/stat") as stat:  # noqa: PTH123 - /proc is not a regular file
                return stat.read().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    def has_finished(self, timeout: float) -> bool:
        """Return whether the program is done or the process is dead. Calls received until then are kept."""
        while self._running and self._child.pipe.poll(timeout):
            self._receive()
        return not self._running

    def close(self) -> None:
        """Ask the process to exit; kill it after 5 s."""
        if not self.died:
            with suppress(OSError):
                self._child.pipe.send(None)
        self._child.close(5)


class ProcessClients:
    """Client processes at one location, and a storage in this process for snapshots."""

    def __init__(self, locations: Locations, names: Sequence[str]) -> None:
        self.location = locations.new()
        self._runner = LoopRunner()
        self._opened = OpenedStorage(locations, self._runner, self.location)
        self.clients = [ProcessClient(locations.target, self.location, name) for name in names]

    def run_round(self, programs: Sequence[Program], seed: int) -> list[ClientCall]:
        """Run one program per process, all at the same time.

        The seed has no effect, because the operating system schedules the processes.
        """
        del seed
        pairs = list(zip(self.clients, programs, strict=False))
        for client, program in pairs:
            client.start(program)
        calls = [call for client, _ in pairs for call in client.wait()]
        for client, _ in pairs:
            if client.died:
                client.raise_death()
        return calls

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        """Read the storage while all clients are idle."""
        return self._runner.run(take_snapshot(self._opened.storage, queue, ids, now, log=log))

    def close(self) -> None:
        close_all([*(client.close for client in self.clients), self._opened.close, self._runner.close])


@contextmanager
def process_clients(locations: Locations, names: Sequence[str]) -> Iterator[ProcessClients]:
    """Start client processes, and close them at the end."""
    clients = ProcessClients(locations, names)
    try:
        yield clients
    finally:
        clients.close()


# -- in the process ----------------------------------------------------------------------------------


class LineCounter:
    """The counter of executed storage lines in a client process. It sends a signal at a chosen line."""

    def __init__(self) -> None:
        self.lines = 0
        self._signal_point: SignalPoint | None = None

    def reset(self, fault: SignalPoint | None) -> None:
        self.lines, self._signal_point = 0, fault

    def on_line(self) -> None:
        self.lines += 1
        if self._signal_point is not None and self.lines == self._signal_point.line:
            os.kill(os.getpid(), self._signal_point.signal)


def run_programs(target: str | OpenStorage, location: str, name: str, pipe: Connection) -> None:
    counter, locations, runner = LineCounter(), Locations(target), LoopRunner()
    opened = OpenedStorage(locations, runner, location)
    folders = source_folders(type(opened.storage))
    opened.close()
    lines = LineTracer(folders, counter.on_line)
    with lines.trace():
        opened = OpenedStorage(locations, runner, location)
    pipe.send(ProgramStats())
    try:
        for program, fault in receive_programs(pipe):
            counter.reset(fault)
            with lines.trace():
                runner.run(run_program(opened.storage, name, program, time.monotonic, pipe.send))
            pipe.send(ProgramStats(counter.lines))
    finally:
        opened.close()
        runner.close()


def receive_programs(pipe: Connection) -> Iterator[tuple[Program, SignalPoint | None]]:
    while True:
        try:
            message: Any = pipe.recv()
        except EOFError:
            return
        if message is None:
            return
        yield message


SKEWED_LAW: Final = (
    "processes with skewed clocks share one time",
    "1, Time",
    "The time of a storage never steps back, on whatever process a caller uses.",
)
#: The error of each process's clock in ms, in the order of their readings. The first clock is right.
SHIFTS: Final = (0, SHIFT, -SHIFT)
ROUNDS: Final = 3
#: The storage's time and the kit's clock may differ by this number of ms since the first reading.
SLACK: Final = 1_000


def skewed_processes(plan: LevelPlan) -> Findings:
    """Read the time in turn in processes with skewed clocks. Without the capability `shared`, do nothing."""
    if not plan.claims.shared:
        return Findings()
    with ExitStack() as stack:
        location = plan.locations.new()
        target = plan.locations.target
        clients = [stack.enter_context(Child(send_times, target, location, shift)) for shift in SHIFTS]
        readings = read_in_turn(clients)
    why = find_wrong_reading(readings, server_clock=plan.claims.server_clock)
    return Findings(
        histories=1,
        events=len(readings),
        faults={"skewed clock": len(SHIFTS) - 1},
        laws=(law_report(*SKEWED_LAW, len(readings), broken=why is not None),),
        failures=() if why is None else (LawFailure(law=SKEWED_LAW[0], why=why),),
    )


def read_in_turn(clients: Sequence[Child]) -> list[tuple[int, int, int]]:
    """Return the shift of the process, the storage's now, and the kit's time in ms, for each reading."""
    readings = []
    for _ in range(ROUNDS):
        for shift, client in zip(SHIFTS, clients, strict=True):
            client.pipe.send(None)
            who = f"grant(queues=['q']) in a process whose clock is {shift} ms off"
            now = client.receive(who, LIMITS.call + GRACE)
            readings.append((shift, now, time.monotonic_ns() // 1_000_000))
    return readings


def find_wrong_reading(readings: Sequence[tuple[int, int, int]], *, server_clock: bool) -> str | None:
    """Return a description of the first reading that breaks the law, or None."""
    _, first, began = readings[0]
    highest = first
    for shift, now, at in readings:
        who = f"in a process whose clock is {shift} ms off"
        if now < highest:
            return f"the time stepped back from {highest} to {now}, {who}"
        if server_clock and abs((now - first) - (at - began)) > SLACK:
            return f"{now - first} ms passed in the storage while {at - began} ms really passed, {who}"
        highest = now
    return None


def send_times(target: str | OpenStorage, location: str, shift: int, pipe: Connection) -> None:
    """Answer each message on the pipe with the storage's now, until the end of the pipe."""
    runner = LoopRunner()
    with shifted_clock(shift):
        opened = OpenedStorage(Locations(target), runner, location, "system")
        try:
            while True:
                pipe.recv()
                pipe.send(runner.run(opened.storage.grant(["q"], 60_000, "kit")).now)
        except EOFError:
            pass
        finally:
            opened.close()
            runner.close()
