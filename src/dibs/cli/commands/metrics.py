"""`dibs metrics`: serve the metrics of a storage to Prometheus."""

from __future__ import annotations

import signal
from threading import Event
from typing import TYPE_CHECKING, Final

import rich_click as click

from dibs.app import Dibs
from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import print_json, print_lines
from dibs.cli.storage_access import find_storage
from dibs.client.connection.storage_handle import resolve_url

if TYPE_CHECKING:
    from dibs.telemetry.storage_metrics import StorageMetrics

INSTALL_COMMAND: Final = 'pip install "dibs[metrics]"'


@click.command("metrics")
@click.option("--host", metavar="HOST", default="127.0.0.1", help="The address to listen on.")
@click.option(
    "--port",
    type=options.Number(0, 65535),
    metavar="PORT",
    default=9464,
    help="The port to listen on; 0 for a free one.",
)
@options.url
@options.json
def command(*, host: str, port: int, url: str | None, json: bool) -> None:
    """Serve the metrics of a storage to Prometheus until Ctrl-C or SIGTERM.

    One such program covers all queues and workers of a storage; a second one would count each run again. A
    scrape also succeeds while the storage does not answer, and then has dibs_storage_up 0. Who reaches the
    port can read the names of the queues. It needs pip install "dibs[metrics]".

    Example:
        dibs metrics --url redis://localhost --host 0.0.0.0
    """
    # Refuse a URL or folder that cannot be meant, before anything listens.
    find_storage(url)
    metrics = _create_metrics(Dibs(resolve_url(url)))
    stopped = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with metrics.serve(port, host) as listening:
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening}/metrics"
        if json:
            print_json({"url": address})
        else:
            print_lines(f"The metrics are at {address}", "Press Ctrl-C to stop it.")
        stopped.wait()


def _create_metrics(app: Dibs) -> StorageMetrics:
    try:
        from dibs.telemetry.storage_metrics import StorageMetrics  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        raise UsageError(
            f"metrics needs prometheus-client of the extra `metrics`, not installed: {INSTALL_COMMAND}"
        ) from error
    return StorageMetrics(app)
