"""A real server of the S3 protocol on loopback: moto's, in a process of its own.

Some calls of deltalake hold the lock of the interpreter, so a server in the same process could not
answer them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import Request, urlopen

BUCKET = "history"


def choose_port() -> int:
    """Return a free port; in a program that a test has started, the port of the server of this test."""
    host, _, port = os.environ.get("AWS_ENDPOINT_URL", "").rpartition(":")
    if host == "http://127.0.0.1":
        return int(port)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


#: Chosen before Spark starts, because its Python processes get these variables at the start of Java.
PORT = choose_port()
#: The environment variables by which clients find the server.
ENVIRONMENT = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


#: Set while the server runs.
_running = threading.Event()


@contextmanager
def s3_server() -> Iterator[None]:
    """Run the server, with one bucket, unless this process has started it already.

    The fixture of tests/spark keeps it running until the end of the process.
    """
    if _running.is_set():
        yield
        return
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _create_bucket(server)
            _running.set()
            yield
        finally:
            _running.clear()
            server.terminate()


def _create_bucket(server: subprocess.Popen[bytes]) -> None:
    request = Request(f"{ENVIRONMENT['AWS_ENDPOINT_URL']}/{BUCKET}", method="PUT")
    while True:
        try:
            urlopen(request, timeout=60).close()
        except URLError:
            assert server.poll() is None
            time.sleep(0.05)
        else:
            return
