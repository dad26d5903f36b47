"""`dibs worker`: run the tasks of an application until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import rich_click as click

from dibs.app import Until
from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_json, print_lines, print_warning
from dibs.cli.reload import run_with_reload
from dibs.cli.storage_access import check_outlives_command
from dibs.cli.worker_display import ExitDeadline, exit_deadline, live_table, set_up_logging
from dibs.client.connection.storage_handle import URL_VARIABLE, resolve_url
from dibs.client.options.arguments import DEFAULT_GRACE, DEFAULT_LEASE
from dibs.model.worker_record import without_reserved
from dibs.storage.addresses import redact_url
from dibs.storage.registry import open_storage

if TYPE_CHECKING:
    from dibs.app import Dibs
    from dibs.client.calls.handler import Handler
    from dibs.storage.protocol import Storage
    from dibs.worker.processes.fork_server import ForkServer

#: Default host of --health. /healthz shows process ids and load, so other machines need HOST:PORT.
LOCALHOST: Final = "127.0.0.1"
MAX_PORT: Final = 65_535


@click.command("worker")
@click.argument("application", metavar="MODULE:APP", help="The application, as package.module:app.")
@click.option(
    "--queues",
    metavar="A,B",
    help="Names of queues, separated by commas. Default: all queues of the application.",
)
@click.option(
    "--processes",
    type=options.Number(min=0),
    metavar="N",
    help="Worker processes. Default: one per CPU that it may use. 0 runs jobs in this process.",
)
@click.option(
    "--until",
    type=click.Choice(get_args(Until)),
    metavar="WHEN",
    default="stopped",
    help="When to end: stopped, by a signal; empty, when no job is left; idle, when no job is due.",
)
@click.option(
    "--grace",
    type=options.Seconds(min=0),
    metavar="DURATION",
    default=DEFAULT_GRACE,
    help="After a stop, time for running jobs to end.",
)
@click.option(
    "--lease",
    type=options.Seconds(),
    metavar="DURATION",
    default=DEFAULT_LEASE,
    help="Time from the last heartbeat of this worker until its jobs return to their queues.",
)
@click.option(
    "--heartbeat",
    type=options.Seconds(),
    metavar="DURATION",
    help="Time between two renewals of the lease. Default: a third of it.",
)
@click.option(
    "--max-runs",
    type=options.Number(min=1),
    metavar="N",
    help="Replace a worker process after this number of runs. Default: no limit.",
)
@click.option(
    "--max-memory",
    type=float,
    metavar="MB",
    help="Replace a worker process that uses more memory. Default: no limit.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Name of this worker in `dibs show` and `dibs events`. Default: host:process id:random digits.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    metavar="LEVEL",
    help="Least level of dibs' own log lines: debug, info, warning or error. "
    "Default: info, or the level that the application sets.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Serve /healthz and /readyz on this port. Default host: 127.0.0.1; port 0: a free port.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="Restart when a .py file below the current directory changes (for development).",
)
@options.url
@options.json
def command(
    application: str,
    *,
    queues: str | None,
    log_level: str | None,
    health: str | None,
    reload: bool,
    url: str | None,
    json: bool,
    **settings: Any,
) -> ExitCode:
    """Run the tasks of an application until Ctrl-C or SIGTERM.

    A stop ends claims, waits --grace seconds for running jobs, and releases the rest to other workers. A
    second Ctrl-C or SIGTERM releases them at once. A worker process that reaches --max-runs or --max-memory
    claims no more, ends its runs, and is replaced.

    Example:
        dibs worker my_app:app --queues emails --processes 4 --url file:./jobs
    """
    if reload:
        return asyncio.run(run_with_reload([arg for arg in sys.argv[1:] if arg != "--reload"], Path.cwd()))
    from dibs.worker.processes.logs import accept_lost_output  # noqa: PLC0415 - as in _import_application

    accept_lost_output()
    # The other options are arguments of `app.work` with the same names.
    with _fork_server(settings["processes"], url) as fork_server:
        app = _import_application(application, url)
        set_up_logging(log_level)
        wanted = [name for name in queues.split(",") if name] if queues is not None else None
        with _open_health_socket(health) as listener:
            settings |= {"queues": wanted, "health": listener, "fork_server": fork_server}
            with exit_deadline(settings["grace"]) as deadline:
                return asyncio.run(_run_worker(app, application, settings, deadline, json=json))


@contextmanager
def _fork_server(processes: int | None, url: str | None) -> Iterator[ForkServer | None]:
    """Start the fork server before the application is imported, and yield it; None for --processes 0."""
    from dibs.worker.processes.fork_server import start_fork_server_early  # noqa: PLC0415 - as in _import_application

    fork_server = None if processes == 0 else start_fork_server_early(url or os.environ.get(URL_VARIABLE, ""))
    try:
        yield fork_server
    finally:
        # Close it here as well as in the worker: after a usage error, no worker starts.
        if fork_server is not None:
            fork_server.close()


@contextmanager
def _open_health_socket(health: str | None) -> Iterator[socket.socket | None]:
    """Open the socket of --health before the worker starts. Raises UsageError if the port is in use."""
    if health is None:
        yield None
        return
    try:
        listener = _create_listener(*_parse_address(health))
    except OSError as error:
        raise UsageError(f"cannot listen on {health}: {error.strerror}; choose another port") from error
    with listener:
        yield listener


def _parse_address(health: str) -> tuple[str, int]:
    host, _, port = health.rpartition(":")
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise UsageError(f"--health is {health!r}; write PORT (up to {MAX_PORT}) or HOST:PORT")
    return host.strip("[]") or LOCALHOST, int(port)


def _create_listener(host: str, port: int) -> socket.socket:
    # The host may be a name, and its address may be IPv6.
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def _import_application(application: str, url: str | None) -> Dibs:
    """Import the application, searching the current directory first, with --url as the URL of its storage."""
    from dibs.worker.processes.app_import import check_threads, import_app  # noqa: PLC0415 - slow: it imports the client

    sys.path.insert(0, str(Path.cwd()))
    if url is not None:
        # Check the URL before the import, which may take long or open the storage.
        check_outlives_command(open_storage(url))
        os.environ[URL_VARIABLE] = url = resolve_url(url)
    app = import_app(application)
    check_threads()
    if url is not None and app.url != url:
        raise UsageError(
            f"{application} has a URL of its own, and it differs from --url: leave --url out, "
            "or create the application without a URL"
        )
    if url is None and (given := os.environ.get(URL_VARIABLE)) and app.url != resolve_url(given):
        print_warning(
            f"{application} has a URL of its own, {redact_url(app.url)}, and ignores ${URL_VARIABLE}"
        )
    return app


async def _run_worker(
    app: Dibs, reference: str, settings: dict[str, Any], deadline: ExitDeadline, *, json: bool
) -> ExitCode:
    from dibs.worker import run as work  # noqa: PLC0415
    from dibs.worker.supervisor.availability import may_open_later, wait_until_available  # noqa: PLC0415
    from dibs.worker.work_plan import cpu_count  # noqa: PLC0415

    if settings["processes"] == 0:
        _report_lifespan_errors(app)
    async with AsyncExitStack() as stack:
        await wait_until_available(lambda: stack.enter_async_context(app), "no connection", may_open_later)
        check_outlives_command(app.storage)
        if settings["processes"] is None:
            settings["processes"] = cpu_count()
        started = await wait_until_available(lambda: _collect_start_info(app, settings), "no list of queues")
        print_json({"started": started}) if json else print_lines(*_format_start_lines(started))
        with live_table(json=json) as progress:
            report = await work(app, reference=reference, progress=progress, **settings)
    totals = {name: report.total(name) for name in ("completed", "failed", "retried", "released")}
    deadline.code = ExitCode.DONE
    with suppress(OSError, ValueError):  # a handler may have closed stdout, or nobody reads it any more
        if json:
            print_json({"stopped": {"seconds": round(report.seconds, 3), **totals}})
        else:
            print_lines("stopped: " + ", ".join(f"{number} {name}" for name, number in totals.items()))
    return ExitCode.DONE


def _report_lifespan_errors(app: Dibs) -> None:
    """Turn an error before the yield of @app.lifespan into a UsageError, as child processes do."""
    from dibs.worker.processes.app_import import describe_error  # noqa: PLC0415 - as in _import_application

    lifespan = app.lifespan_function
    if lifespan is None:
        return

    @asynccontextmanager
    async def checked() -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            try:
                resources = await stack.enter_async_context(lifespan())
            except Exception as error:
                raise UsageError(describe_error(error)) from error
            yield resources

    app.lifespan_function = checked


async def _collect_start_info(app: Dibs, settings: dict[str, Any]) -> dict[str, Any]:
    storage: Storage = app.storage
    queues, listener = settings["queues"], settings["health"]
    served = [handler for name, handler in app.handlers.items() if queues is None or name in queues]
    existing = {info.name for info in without_reserved(await storage.queues())}
    return {
        "url": storage.url,
        "durability": storage.durability,
        "processes": settings["processes"],
        "grace": settings["grace"],
        "health": listener and _format_address(listener),
        "handlers": [
            {
                "queue": handler.queue,
                "function": _function_name(handler),
                "runs_per_process": handler.runs_per_process,
            }
            for handler in served
        ],
        "unserved": sorted(existing - {handler.queue for handler in served}),
    }


def _format_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _function_name(handler: Handler) -> str:
    return f"{handler.function.__module__}.{handler.function.__qualname__}"


def _format_start_lines(started: dict[str, Any]) -> list[str]:
    processes = started["processes"] or "none, jobs run in this process"
    lines = [
        f"dibs worker at {started['url']}; {started['durability']}",
        f"  processes  {processes}; a stop waits up to {started['grace']:g} s for running jobs",
    ]
    if started["health"]:
        lines.append(f"  health     /healthz and /readyz at {started['health']}")
    lines += [
        f"  {each['queue']:<20} {each['function']}, up to {each['runs_per_process']} at a time in a process"
        for each in started["handlers"]
    ]
    return lines
