"""The faults of a soak: killed and frozen processes, killed or full servers, full disks, replaced folders.

One more fault is caused by the handlers in app.py: they change the working directory of their process.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import psutil
import psycopg
from attrs import define, field, frozen

from dibs_conformance.crashes.interrupted_calls import Proxy
from dibs_conformance.servers import PostgresServer, RedisServer, ServerUnavailable
from dibs_conformance.servers.processes import wait_until
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


#: Bytes of the disk of each storage. An hour of events must fit.
DISK_BYTES: Final = 400 << 20


@contextmanager
def small_disk() -> Iterator[Disk]:
    """Mount a file system of DISK_BYTES on a new folder. Without the right to mount, yield a plain folder."""
    folder = Path(tempfile.mkdtemp(prefix="dibs-disk-"))
    folder.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(folder)]
    mounted = shutil.which("mount") is not None and not subprocess.run(mount, check=False).returncode
    # This shell sees the end of its standard input also when this process is killed.
    script = 'read -r _; umount -l "$1"; rm -rf "$1"'
    with subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", folder], stdin=subprocess.PIPE, start_new_session=True
    ):
        yield Disk(folder, mounted=mounted)


@frozen
class Disk:
    """The folder in which a storage has its data, and whether it is a file system of its own."""

    folder: Path
    mounted: bool

    def fill(self, seconds: float) -> None:
        """Leave no free byte for some seconds."""
        end = time.monotonic() + seconds
        path = self.folder / "filler"
        with path.open("ab", buffering=0) as filler:
            while time.monotonic() < end:
                with suppress(OSError):
                    while filler.write(bytes(1 << 20)):
                        pass
                time.sleep(0.02)
        path.unlink()


@define(eq=False)
class FaultMaker:
    """The source of faults. `freeze` is the number of seconds that a worker stands still."""

    workers: Sequence[Program]
    producers: Sequence[Program]
    server: RedisServer | PostgresServer | None
    proxy: Proxy | None
    disk: Disk
    #: The link through which a file storage is reached; None for a server.
    link: Path | None
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
            choices += [self.kill_server, self.cut_network, self.cut_network, self.refuse_writes]
        if self.link is not None:
            choices.append(self.replace_folder)
        if self.disk.mounted:
            choices.append(self.fill_disk)
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
        self._start_server()
        self.faults.append(Fault("kill_server", at, time.time()))

    def _start_server(self) -> None:
        """Start the server again. On a busy machine it may read its data for longer than a start may take."""
        assert self.server is not None
        try:
            self.server.start()
        except ServerUnavailable:
            if self.server.ended or not wait_until(self.server.is_ready, 300):
                raise

    def cut_network(self) -> None:
        """Cut connections for half a second, in the middle of a request or of a reply."""
        assert self.proxy is not None
        at = time.time()
        for _ in range(25):
            self.proxy.arm(random.choice(("request", "reply")), after=random.randrange(400))
            time.sleep(0.02)
        self.proxy.arm()
        self.faults.append(Fault("cut_network", at, time.time()))

    def refuse_writes(self) -> None:
        """Let the server refuse writes for up to two seconds: Redis at maxmemory, Postgres read-only."""
        at = time.time()
        self._set_refusal(on=True)
        time.sleep(random.uniform(0, 2))
        self._set_refusal(on=False)
        self.faults.append(Fault("refuse_writes", at, time.time()))

    def _set_refusal(self, *, on: bool) -> None:
        if isinstance(self.server, RedisServer):
            self.server.execute("CONFIG", "SET", "maxmemory", int(on))
        elif self.server is not None:
            with psycopg.connect(self.server.url, autocommit=True) as connection:
                connection.execute(
                    f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}"
                )
                connection.execute("SELECT pg_reload_conf()")

    def fill_disk(self) -> None:
        """Fill the disk for up to two seconds. Start a server that ended because of it again."""
        at = time.time()
        self.disk.fill(random.uniform(0, 2))
        if self.server is not None and self.server.ended:
            self._start_server()
        self.faults.append(Fault("fill_disk", at, time.time()))

    def replace_folder(self) -> None:
        """Switch the link to a copy of the folder that has every commit, and remove the folder."""
        assert self.link is not None
        folder, at = self.link.resolve(), time.time()
        copy, new_link = folder.with_name(f"copy-{len(self.faults)}"), self.link.with_name("new-link")
        with (folder / "lock").open("ab") as lock:
            # A frozen worker may hold the lock.
            if not wait_until(lambda: _try_lock(lock), 5):
                return
            shutil.copytree(folder, copy)
            new_link.symlink_to(copy)
            new_link.replace(self.link)
        while folder.exists():  # a process that still reads it may write a file meanwhile
            shutil.rmtree(folder, ignore_errors=True)
        self.faults.append(Fault("replace_folder", at, time.time()))

    def _record(self, kind: str, pids: frozenset[int]) -> None:
        self.faults.append(Fault(kind, time.time(), time.time(), pids))


def _signal(pids: Sequence[int] | frozenset[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
