"""A real server of the S3 protocol on loopback: moto's, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "history"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the environment variables by which clients find the server, which has one bucket."""
    # Both take seconds to import, and few tests need them.
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        yield environment
    finally:
        server.stop()
