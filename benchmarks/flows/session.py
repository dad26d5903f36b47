"""The processes of one system: a producer that enqueues flows, and two workers that run them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from attrs import define, field

from benchmarks.flows.systems import PROGRAMS, System
from benchmarks.peers.environments import PeerUnavailable, tree_pids


class Event(NamedTuple):
    """A line of the log; programs/flow_harness.py describes the letters."""

    letter: str
    flow: int
    value: int
    pid: int
    ns: int


@define
class EventLog:
    """The log of one session. `read` appends new events to `events`."""

    path: Path
    events: list[Event] = field(factory=list)
    #: The flows whose fan-in ended at least once.
    done: set[int] = field(factory=set)
    _offset: int = 0

    def read(self) -> list[Event]:
        """Return the events since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        # A line is one write, but a read may come between two pages of it.
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        new = [parse(line) for line in complete.decode().splitlines()]
        self.events += new
        self.done.update(event.flow for event in new if event.letter == "f")
        return new


def parse(line: str) -> Event:
    letter, *numbers = line.split()
    flow, value, pid, ns = map(int, numbers)
    return Event(letter, flow, value, pid, ns)


#: Worker processes of each system.
WORKERS: Final = 2
#: Seconds until a start, or the flows of one request, count as failed.
TIMEOUT: Final = 400.0
#: Seconds between two reads of the log.
LOOK: Final = 0.002


def last_line(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").strip().splitlines()
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no output")


@define
class Producer:
    """The process of the step `produce`. It enqueues flows on request."""

    _process: subprocess.Popen[str]
    _errors: Path

    @classmethod
    def start(cls, command: list[str], variables: Mapping[str, str], folder: Path) -> Self:
        errors = folder / "producer"
        with errors.open("w") as output:
            process = subprocess.Popen(
                command,
                env={**variables, "FLOW_STEP": "produce"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        producer = cls(process, errors)
        try:
            producer._next_line()
        except BaseException:
            producer.stop()
            raise
        return producer

    def enqueue(self, flows: range, nodes: int) -> dict[str, int]:
        """Enqueue these flows and return the times of the start and the end in ns."""
        assert self._process.stdin
        request = {"first": flows.start, "flows": len(flows), "nodes": nodes}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        return self._next_line()

    def _next_line(self) -> dict[str, Any]:
        """Return the next answer. Other lines are output of the system."""
        assert self._process.stdout
        deadline = time.monotonic() + TIMEOUT
        while select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = self._process.stdout.readline()
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            if not line:
                break
        raise PeerUnavailable(f"the producer failed: {last_line(self._errors)}")

    def stop(self) -> None:
        kill_tree(self._process)
        self._process.communicate()


@define
class Workers:
    """The worker commands of a system. `kill` kills one with all its processes."""

    _system: System
    _variables: Mapping[str, str]
    _folder: Path
    _processes: list[subprocess.Popen[bytes]] = field(factory=list, init=False)
    #: The time of the kill in ns, by process id.
    killed: dict[int, int] = field(factory=dict, init=False)

    def start(self) -> None:
        self._processes = [self._start_one(number) for number in range(WORKERS)]

    def _start_one(self, number: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"worker{number}").open("ab") as output:
            return subprocess.Popen(
                self._system.worker(number),
                env={**self._variables, "FLOW_STEP": "work"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def check(self) -> None:
        """Raise PeerUnavailable if a worker ended by itself."""
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                reason = last_line(self._folder / f"worker{number}")
                raise PeerUnavailable(f"worker {number} ended: {reason}")

    def number_of(self, pid: int) -> int | None:
        """Return the number of the worker to which a process belongs, or None if it belongs to none."""
        numbers = (n for n, process in enumerate(self._processes) if pid in tree_pids(process.pid))
        return next(numbers, None)

    def replace(self, number: int) -> None:
        """Kill a worker with SIGKILL and start its successor."""
        pids = kill_tree(self._processes[number])
        self.killed.update(dict.fromkeys(pids, time.monotonic_ns()))
        self._processes[number] = self._start_one(number)

    def stop(self) -> None:
        for process in self._processes:
            kill_tree(process)


def kill_tree(process: subprocess.Popen[Any]) -> list[int]:
    """Kill a process and its descendants with SIGKILL. Return their process ids."""
    pids = tree_pids(process.pid)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    return pids


@define
class Session:
    """A producer and workers of one system, on an empty server."""

    workers: Workers
    log: EventLog
    _producer: Producer
    #: The number of the next flow.
    next_flow: int = 0

    def enqueue(self, flows: int, nodes: int) -> tuple[range, dict[str, int]]:
        """Enqueue new flows. Return their numbers and the times of the enqueue."""
        numbers = range(self.next_flow, self.next_flow + flows)
        self.next_flow += flows
        return numbers, self._producer.enqueue(numbers, nodes)

    def wait(self, condition: Callable[[], bool], seconds: float = TIMEOUT) -> bool:
        """Read the log until the condition is met. Return False if it is not after these seconds."""
        deadline = time.monotonic() + seconds
        while True:
            self.log.read()
            if condition():
                return True
            if time.monotonic() > deadline:
                return False
            self.workers.check()
            time.sleep(LOOK)

    def wait_for_fan_ins(self, flows: range) -> None:
        """Wait until all fan-ins ended. Raise PeerUnavailable after the timeout."""
        if not self.wait(lambda: self.log.done.issuperset(flows)):
            missing = sum(flow not in self.log.done for flow in flows)
            raise PeerUnavailable(f"{missing} of {len(flows)} fan-ins did not end within {TIMEOUT:.0f} s")

    def ready_workers(self) -> int:
        """Return the number of workers that reported that they are ready."""
        return sum(event.letter == "r" for event in self.log.events)

    def warm_up(self) -> None:
        """Run flows until each worker has run a part of one, or five times."""
        if not self.wait(lambda: self.ready_workers() >= WORKERS):
            raise PeerUnavailable("a worker did not report that it is ready")
        for _ in range(5):
            self.wait_for_fan_ins(self.enqueue(5, 20)[0])
            pids = {event.pid for event in self.log.events if event.letter != "r"}
            if len(pids) >= WORKERS:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.stop()
        self.workers.stop()


@contextmanager
def open_session(system: System, url: str, *, pause: int = 0, recovery: int = 0) -> Iterator[Session]:
    """Start the processes of a system, and run the first flows.

    `pause`: the least ms that a node works, 0 for none. `recovery`: the seconds after which the jobs of a
    killed worker run again, or 0 for the default of the system.
    """
    system.install()
    with tempfile.TemporaryDirectory(prefix="flows-") as name:
        folder = Path(name)
        log = EventLog(folder / "log")
        log.path.touch()
        variables = {
            **program_variables(system, url),
            "FLOW_LOG": str(log.path),
            "FLOW_PAUSE": str(pause),
            "FLOW_RECOVERY": str(recovery),
        }
        if system.prepares:
            prepare(system, variables)
        workers = Workers(system, variables, folder)
        try:
            workers.start()
            with Session(workers, log, Producer.start(system.command(), variables, folder)) as session:
                session.warm_up()
                yield session
        finally:
            workers.stop()


def program_variables(system: System, url: str) -> dict[str, str]:
    paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **dict(system.variables),
        "PYTHONPATH": os.pathsep.join(paths),
        "DIBS_URL": url,
        "FLOW_URL": url,
    }


def prepare(system: System, variables: Mapping[str, str]) -> None:
    """Run the step `prepare`. Raise PeerUnavailable if it fails."""
    done = subprocess.run(
        system.command(),
        env={**variables, "FLOW_STEP": "prepare"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise PeerUnavailable(f"prepare failed: {(done.stderr or done.stdout).strip()[-300:]}")
