"""The processes of a peer: one for each step of its program, and a worker that reports through a FIFO."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.peers.environments import PROGRAMS, PeerUnavailable
from benchmarks.peers.usage import tree_cpu_us, tree_pids

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
