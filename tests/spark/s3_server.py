"""A real server of the S3 protocol on loopback: moto's, in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "history"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


#: Chosen before Spark starts, because its Python processes get these variables at the start of Java.
PORT = free_port()
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
    """Run the server, with one bucket, unless it runs in this process already.

    The fixture of tests/spark keeps it running until the end of the process, and moto waits for ever for a
    server whose port is taken.
    """
    if _running.is_set():
        yield
        return
    # Both take seconds to import, and few tests need them.
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=PORT, verbose=False)
    server.start()
    _running.set()
    try:
        client = boto3.client(
            "s3",
            endpoint_url=ENVIRONMENT["AWS_ENDPOINT_URL"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        yield
    finally:
        _running.clear()
        server.stop()
