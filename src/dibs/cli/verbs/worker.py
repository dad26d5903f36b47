"""`dibs worker`: the handlers of an application run until somebody stops them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_json, print_lines
from dibs.cli.reload import run_with_reload
from dibs.cli.storage_access import check_outlives_command
from dibs.cli.worker_display import live_table, set_up_logging
from dibs.client.connection.url import URL_VARIABLE
from dibs.storage.registry import open_storage

if TYPE_CHECKING:
    from dibs.client.app import Dibs
    from dibs.client.calls.handler import Handler
    from dibs.storage.protocol import Storage
    from dibs.worker.processes.fork_server import ForkServer

#: Whom /healthz and /readyz are answered unless a host is named: they tell process ids and load.
LOCAL: Final = "127.0.0.1"
LAST_PORT: Final = 65_535


@click.command("worker")
@click.argument("application", metavar="MODULE:APP", help="Where the application is.")
@click.option("--queues", metavar="A,B", help="Only these queues; all that have a handler if left out.")
@click.option(
    "--processes", type=options.Number(min=0), metavar="N", help="One per CPU if left out; 0 is in this one."
)
@click.option(
    "--grace",
    type=options.Seconds(min=0),
    metavar="SECONDS",
    default=30.0,
    help="How long a stop waits for what runs.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Answer /healthz and /readyz there; without a host, to this machine alone.",
)
@click.option(
    "--reload", is_flag=True, help="For development: start anew when a .py file below here changes."
)
@options.url
@options.json
def command(
    application: str,
    *,
    queues: str | None,
    processes: int | None,
    grace: float,
    health: str | None,
    reload: bool,
    url: str | None,
    json: bool,
) -> ExitCode:
    """Run the handlers of an application until stopped.

    Ctrl-C or SIGTERM claims no more, waits the grace and releases the rest; a second one releases at once.

    Example: dibs worker my_app:app --queues emails --processes 4 --url file:./jobs
    """
    if reload:
        return asyncio.run(run_with_reload([arg for arg in sys.argv[1:] if arg != "--reload"], Path.cwd()))
    with _ahead(processes, url) as nursery:
        set_up_logging()
        app = found(application, url)
        wanted = [name for name in queues.split(",") if name] if queues is not None else None
        with _listening(health) as listener:
            settings = {
                "queues": wanted,
                "processes": processes,
                "grace": grace,
                "health": listener,
                "fork_server": nursery,
            }
            return asyncio.run(_work(app, application, settings, json=json))


@contextmanager
def _ahead(processes: int | None, url: str | None) -> Iterator[ForkServer | None]:
    """Begin what worker processes come from before all else, while nothing of the user's is here."""
    from dibs.worker.processes.fork_server import start_early  # noqa: PLC0415 - as in found

    nursery = None if processes == 0 else start_early(url or os.environ.get(URL_VARIABLE, ""))
    try:
        yield nursery
    finally:
        # Also where what was typed is a mistake, so that nobody works.
        if nursery is not None:
            nursery.close()


@contextmanager
def _listening(health: str | None) -> Iterator[socket.socket | None]:
    """Take the port before anything else begins: that it is taken already is a mistake in what was typed."""
    if health is None:
        yield None
        return
    try:
        listener = _listener(*_address(health))
    except OSError as error:
        raise UsageError(f"cannot listen on {health}: {error.strerror}") from error
    with listener:
        yield listener


def _address(health: str) -> tuple[str, int]:
    host, _, port = health.rpartition(":")
    if not port.isdecimal() or int(port) > LAST_PORT:
        raise UsageError(f"--health is {health!r}; say a port up to {LAST_PORT}, or HOST:PORT")
    return host.strip("[]") or LOCAL, int(port)


def _listener(host: str, port: int) -> socket.socket:
    # A host may be a name, and may have an address of another family than IPv4.
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def found(application: str, url: str | None) -> Dibs:
    """Import the application, from the current directory first, and let it know the place."""
    from dibs.worker.processes.app_import import import_app  # noqa: PLC0415 - brings the client and the worker: only for this verb

    if url is not None:
        # Before the application is imported: what it does then may take long, or open the place.
        check_outlives_command(open_storage(url))
        os.environ[URL_VARIABLE] = url
    sys.path.insert(0, str(Path.cwd()))
    app = import_app(application)
    if url is not None and app.url != url:
        raise UsageError(
            f"{application} names its place itself, and it is not the one of --url: leave --url out, "
            "or make the application without a URL"
        )
    return app


async def _work(app: Dibs, reference: str, settings: dict[str, Any], *, json: bool) -> ExitCode:
    from dibs.worker import run as work  # noqa: PLC0415
    from dibs.worker.work_plan import cpu_count  # noqa: PLC0415

    async with app:
        check_outlives_command(app.storage)
        if settings["processes"] is None:
            settings["processes"] = cpu_count()
        started = await _started(app, settings)
        print_json({"started": started}) if json else print_lines(*_lines(started))
        with live_table(json=json) as progress:
            report = await work(app, reference=reference, progress=progress, **settings)
    totals = {word: report.total(word) for word in ("completed", "failed", "retried", "released")}
    if json:
        print_json({"stopped": {"seconds": round(report.seconds, 3), **totals}})
    else:
        print_lines("stopped: " + ", ".join(f"{number} {word}" for word, number in totals.items()))
    return ExitCode.DONE


async def _started(app: Dibs, settings: dict[str, Any]) -> dict[str, Any]:
    storage: Storage = app.storage
    queues, listener = settings["queues"], settings["health"]
    served = [handler for name, handler in app.handlers.items() if queues is None or name in queues]
    known = {info.name for info in await storage.queues()}
    return {
        "url": storage.url,
        "durability": storage.durability,
        "processes": settings["processes"],
        "grace": settings["grace"],
        "health": listener and _place(listener),
        "handlers": [{"queue": handler.queue, "function": _function(handler)} for handler in served],
        "unserved": sorted(known - {handler.queue for handler in served}),
    }


def _place(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _function(handler: Handler) -> str:
    return f"{handler.function.__module__}.{handler.function.__qualname__}"


def _lines(started: dict[str, Any]) -> list[str]:
    lines = [
        f"dibs worker at {started['url']}; {started['durability']}",
        f"  processes  {started['processes'] or 'this one'}; a stop waits up to {started['grace']:g} s",
    ]
    if started["health"]:
        lines.append(f"  health     /healthz and /readyz at {started['health']}")
    lines += [f"  {each['queue']:<20} {each['function']}" for each in started["handlers"]]
    return lines
