"""The faults of a soak: killed and frozen processes, killed servers, cut connections."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
from attrs import define, field

from dibs_conformance.crashes.proxy import Proxy
from dibs_conformance.servers import PostgresServer, RedisServer
from tests.soak.accounting import Fault
from tests.source import PROJECT


@define(eq=False)
class Program:
    """A program of the soak that is started again whenever a fault has killed it."""

    command: Sequence[str]
    environment: Mapping[str, str]
    output: Path
    #: Exit codes of ends that no fault caused, such as a start while the server is away.
    own_exits: list[int] = field(factory=list, init=False)
    _restart_at: float = field(default=0.0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        with self.output.open("ab") as log:
            self._process = self._popen(log)

    def _popen(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *self.command],
            cwd=PROJECT,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def keep_alive(self) -> None:
        """Start the program again a second after it has ended by itself, as a service manager does."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self.own_exits.append(code)
            self._process, self._restart_at = None, time.monotonic() + 1.0
        if self._process is None and self._restart_at <= time.monotonic():
            self.start()

    def processes(self) -> list[psutil.Process]:
        """Return the process of the program and all its descendants."""
        if self._process is None:
            return []
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, seconds: float) -> int | None:
        """Send SIGTERM and return the exit code; None if the program had to be killed after `seconds`."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


@define(eq=False)
class FaultMaker:
    """The source of faults. `freeze` is the number of seconds that a worker stands still."""

    workers: Sequence[Program]
    producers: Sequence[Program]
    server: RedisServer | PostgresServer | None
    proxy: Proxy | None
    freeze: float
    faults: list[Fault] = field(factory=list, init=False)
    #: The frozen processes, and when they continue.
    _frozen: list[tuple[float, Fault]] = field(factory=list, init=False)

    def make_fault(self) -> None:
        """Cause one fault, chosen by chance."""
        choices: list[Callable[[], None]] = [
            self.kill_process, self.kill_process, self.kill_worker, self.freeze_worker, self.kill_producer,
        ]  # fmt: skip
        if self.server is not None:
            choices += [self.kill_server, self.cut_network, self.cut_network]
        random.choice(choices)()

    def kill_process(self) -> None:
        """Kill one process below a worker: a worker process, the fork server or an isolated process."""
        below = random.choice(self.workers).processes()[1:]
        if below:
            victim = random.choice(below)
            with suppress(psutil.NoSuchProcess):
                pids = frozenset([victim.pid, *(each.pid for each in victim.children(recursive=True))])
                self._record("kill_process", pids)
                victim.kill()

    def kill_worker(self) -> None:
        """Kill a supervisor; the kernel kills its processes. Start another one."""
        worker = random.choice(self.workers)
        self._record("kill_worker", frozenset(each.pid for each in worker.processes()))
        worker.kill()
        worker.start()

    def freeze_worker(self) -> None:
        """Stop a supervisor and its processes with SIGSTOP until `thaw` continues them."""
        if self._frozen:
            return
        pids = [each.pid for each in random.choice(self.workers).processes()]
        fault = Fault("freeze_worker", time.time(), time.time() + self.freeze, frozenset(pids))
        _signal(pids, signal.SIGSTOP)
        self._frozen.append((fault.until, fault))
        self.faults.append(fault)

    def thaw(self, *, now: bool = False) -> None:
        """Continue the processes whose time is over; with `now` all of them."""
        due = [each for each in self._frozen if now or each[0] <= time.time()]
        for each in due:
            self._frozen.remove(each)
            _signal(each[1].pids, signal.SIGCONT)

    def kill_producer(self) -> None:
        producer = random.choice(self.producers)
        self._record("kill_producer", frozenset(each.pid for each in producer.processes()))
        producer.kill()
        producer.start()

    def kill_server(self) -> None:
        """Kill the server, and start it again after up to a second."""
        assert self.server is not None
        at = time.time()
        self.server.kill()
        time.sleep(random.uniform(0, 1))
        self.server.start()
        self.faults.append(Fault("kill_server", at, time.time()))

    def cut_network(self) -> None:
        """Cut connections for half a second, in the middle of a request or of a reply."""
        assert self.proxy is not None
        at = time.time()
        for _ in range(25):
            self.proxy.arm(random.choice(("request", "reply")), after=random.randrange(400))
            time.sleep(0.02)
        self.proxy.arm()
        self.faults.append(Fault("cut_network", at, time.time()))

    def _record(self, kind: str, pids: frozenset[int]) -> None:
        self.faults.append(Fault(kind, time.time(), time.time(), pids))


def _signal(pids: Sequence[int] | frozenset[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
