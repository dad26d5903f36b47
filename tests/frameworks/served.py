"""Starts a web server as a process, sends it requests, and stops it by SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import define, field

from tests.source import PROJECT

#: Seconds in which a server answers after its start, and ends after SIGTERM.
START_SECONDS: Final = 40.0
#: Lines of a log with one of these words report an error.
ERROR_WORDS: Final = ("Traceback", "Task was destroyed", "never awaited", "ResourceWarning", "Segmentation")


@define
class Served:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    exit_code: int | None = field(default=None, init=False)

    def get(self, path: str) -> str:
        """Return the body of the reply to a GET. Raises HTTPError for a status of 400 or more."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=40) as reply:
            return str(reply.read().decode())

    @property
    def errors(self) -> list[str]:
        """The lines of the log that report an error."""
        lines = self.log.read_text("utf-8").splitlines()
        return [line for line in lines if any(word in line for word in ERROR_WORDS)]

    def wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                text = self.log.read_text("utf-8")
                assert self.process.poll() is None, text
                assert time.monotonic() < deadline, text
                time.sleep(0.05)

    def stop(self) -> None:
        """Send SIGTERM and wait for the end, as service managers do."""
        self.process.send_signal(signal.SIGTERM)
        self.exit_code = self.process.wait(START_SECONDS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def serve(words: Sequence[str], url: str, folder: Path) -> Iterator[Served]:
    """Run `python WORDS`, with the port for {port}, until the end of the block."""
    port, log = free_port(), folder / "server.log"
    paths = os.pathsep.join(map(str, (PROJECT, PROJECT / "src")))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *(word.replace("{port}", str(port)) for word in words)],
            cwd=folder,
            env={**os.environ, "DIBS_URL": url, "PYTHONPATH": paths},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    served = Served(process, port, log)
    try:
        served.wait_until_it_listens()
        yield served
    finally:
        # The group, because some servers leave children behind when their start fails.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(START_SECONDS)


@contextmanager
def start_worker(url: str, folder: Path) -> Iterator[None]:
    """Run a `dibs worker` of the test applications until the end of the block."""
    words = [sys.executable, "-m", "dibs", "worker", "tests.frameworks.apps.jobs:app", "--processes", "1"]
    with (folder / "worker.log").open("wb") as output:
        process = subprocess.Popen(
            words, cwd=PROJECT, env={**os.environ, "DIBS_URL": url}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        assert 0 == process.wait(START_SECONDS), (folder / "worker.log").read_text("utf-8")
