"""The base class of private servers: it starts and stops the process, and removes its folder."""

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
from typing import Any, Self, TypeVar

from dibs_conformance.servers.binaries import ServerUnavailable

LOOPBACK = "127.0.0.1"
STARTUP_SECONDS = 20.0
PORT_TRIES = 5


class Removable(ABC):
    """A server, or several, that a `with` block removes at its end."""

    @abstractmethod
    def remove(self) -> None:
        """Stop the server and remove its folder."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


Made = TypeVar("Made", bound=Removable)


def make(server: Made, *steps: Callable[[], None]) -> Made:
    """Make the steps that prepare and start a server, and return it. Remove it if a step fails."""
    try:
        for step in steps:
            step()
    except BaseException:
        server.remove()
        raise
    return server


class Server(Removable):
    """A private server. `start` after `kill` or `stop` uses the same port and the same data."""

    #: The signal for an orderly shutdown.
    stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        # A short path, because the path of a Unix socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="dibs-"))
        self.port = 0
        #: Environment variables of the server, beside those of this process.
        self.environ: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command line of a server on `self.port`, with a socket in `self.folder`."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server serves clients.

        Connect through the socket in the private folder, so that no other server answers.
        """

    def popen_options(self) -> dict[str, Any]:
        """Return extra options for Popen, such as the user that runs the server."""
        return {}

    def start(self) -> None:
        """Start the server and wait until it serves clients. Raise ServerUnavailable if it does not start.

        The first start chooses a port, and tries another one if that port is taken.
        """
        again = self.port
        for _ in range(PORT_TRIES):
            self.port = again or free_port()
            if self._start_once():
                return
            if again:  # child processes of a killed server may hold its data for a moment
                time.sleep(0.2)
        raise ServerUnavailable(f"{type(self).__name__} does not start: {self.last_output()}")

    def _start_once(self) -> bool:
        self._stop_with_signal(signal.SIGKILL)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environ},
                **self.popen_options(),
            )
        self._watchdog = start_watchdog(self._process.pid, self.folder)
        return wait_until(lambda: self.ended or self.is_ready(), STARTUP_SECONDS) and not self.ended

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def last_output(self) -> str:
        """Return the last three lines of the log, for an error message."""
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return " / ".join(lines[-3:]) or "its log is empty"

    def stop(self) -> None:
        """Shut the server down in an orderly way. After 10 s, kill it."""
        self._stop_with_signal(self.stop_signal)

    def kill(self) -> None:
        """Kill the server with SIGKILL, to simulate a crash."""
        self._stop_with_signal(signal.SIGKILL)

    def _stop_with_signal(self, signal_: signal.Signals) -> None:
        process, self._process = self._process, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal_)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def pause(self) -> None:
        """Stop the server process with SIGSTOP until `resume`, to simulate an overloaded server."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.remove)


def start_watchdog(pid: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a shell that kills the server and removes its folder when this process ends.

    A killed process does not run atexit; the shell sees the end of its standard input in any case.
    """
    script = 'read -r _; kill -9 "$1"; rm -rf "$2"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", str(pid), str(folder)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    """Return a port that is free now. Another program may take it before the server starts."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Call `ready` until it returns True, with pauses of 2 to 100 ms. Return False after `seconds`."""
    deadline, pause = time.monotonic() + seconds, 0.002
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return True
