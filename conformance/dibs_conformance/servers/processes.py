"""One server process: its folder, its port, and how it ends."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dibs_conformance.servers.binaries import ServerUnavailable

LOOPBACK = "127.0.0.1"
STARTUP_SECONDS = 20.0
PORT_TRIES = 5


class Server(ABC):
    """A private server. `start` after `kill` or `stop` is on the same port and the same data."""

    #: What asks it to stop, in good order.
    farewell = signal.SIGTERM

    def __init__(self) -> None:
        # Short, because the path of a Unix socket may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="dibs-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line that serves `self.port` and a socket in `self.folder`."""

    @abstractmethod
    def answers(self) -> bool:
        """Tell whether it serves. Asked through the socket in our folder: no other server is there."""

    def privileges(self) -> dict[str, Any]:
        """Return as whom it runs, in the words of Popen."""
        return {}

    def start(self) -> None:
        """Start it and wait until it serves; a port that was taken meanwhile is given up for another."""
        again = self.port
        for _ in range(PORT_TRIES):
            self.port = again or free_port()
            if self._try():
                return
            if again:  # the children of one that was killed may hold its data for a moment
                time.sleep(0.2)
        raise ServerUnavailable(f"{type(self).__name__} does not start: {self.complaint()}")

    def _try(self) -> bool:
        self._end(signal.SIGKILL)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.privileges(),
            )
        self._guard = guard(self._process.pid, self.folder)
        return wait_until(lambda: self.ended or self.answers(), STARTUP_SECONDS) and not self.ended

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def complaint(self) -> str:
        """Return the last lines it wrote."""
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return " / ".join(lines[-3:]) or "it said nothing"

    def stop(self) -> None:
        """Stop it in good order."""
        self._end(self.farewell)

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        keeper, self._guard = self._guard, None
        if keeper is not None:
            keeper.kill()
            keeper.communicate()
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def pause(self) -> None:
        """Let it hang, as an overloaded one would, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and leave no trace."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.remove)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def guard(pid: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start what ends a server when we are gone, however we went: atexit is not run for a kill."""
    script = 'read -r _; kill -9 "$1"; rm -rf "$2"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", str(pid), str(folder)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Ask again and again, a little later each time; tell whether it came true in time."""
    deadline, pause = time.monotonic() + seconds, 0.002
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return True
