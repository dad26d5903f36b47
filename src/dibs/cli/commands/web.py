"""`dibs web`: serve the dashboard of a storage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from dibs.app import Dibs
from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import print_json, print_lines
from dibs.cli.storage_access import find_storage, import_application
from dibs.client.connection.storage_handle import resolve_url
from dibs.errors import ConfigurationError

if TYPE_CHECKING:
    from dibs.web.server import ServerOptions

INSTALL_COMMAND: Final = 'pip install "dibs[web]"'
#: Environment variable with a token of the user's choice, for servers that start again.
TOKEN_VARIABLE: Final = "DIBS_WEB_TOKEN"  # noqa: S105 - a name
#: Fewest characters of such a token.
TOKEN_LENGTH: Final = 16


@click.command("web")
@click.argument(
    "application",
    metavar="[MODULE:APP]",
    required=False,
    help="The application, as package.module:app. The pages then name the arguments of its tasks.",
)
@click.option("--host", metavar="HOST", default="127.0.0.1", help="The address to listen on.")
@click.option(
    "--port",
    type=options.Number(0, 65535),
    metavar="PORT",
    default=8321,
    help="The port to listen on; 0 for a free one.",
)
@click.option("--write", is_flag=True, help="Allow changes to those who have the printed address.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="A host name of the dashboard besides localhost, if a proxy passes it; may be repeated.",
)
@click.option("--hide-values", is_flag=True, help="Show no arguments, results or texts of errors.")
@click.option(
    "--warehouse",
    metavar="WHERE",
    help="Tables of `dibs spark history`, for the page History: a folder, or a URL as s3://bucket/history.",
)
@options.url
@options.json
def command(
    application: str | None,
    *,
    host: str,
    port: int,
    write: bool,
    hide_values: bool,
    warehouse: str | None,
    allowed_hosts: tuple[str, ...],
    url: str | None,
    json: bool,
) -> None:
    """Serve the dashboard of a storage until Ctrl-C, and print its address.

    The dashboard is read-only, and only this machine can reach it. With --write, or with another --host, the
    address ends with a token, and the dashboard is closed to those without it. DIBS_WEB_TOKEN sets the token.
    It needs pip install "dibs[web]". --json prints the address as JSON.

    Example:
        dibs web --url redis://localhost --write
    """
    server_options = _server_options(
        host, port, write=write, hide_values=hide_values, warehouse=warehouse, allowed_hosts=allowed_hosts
    )
    app = import_application(application, url) if application else Dibs(resolve_url(url))
    find_storage(app.url)
    if warehouse is not None:
        _check_warehouse(warehouse)
    from dibs.web import server  # noqa: PLC0415 - slow: it imports Starlette and uvicorn

    def print_address(address: str) -> None:
        if json:
            print_json({"url": address, "write": write})
        else:
            print_lines(f"The dashboard is at {address}", "Press Ctrl-C to stop it.")

    server.run(app, server_options, print_address)


def _server_options(host: str, port: int, **more: Any) -> ServerOptions:
    try:
        from dibs.web.server import ServerOptions  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        raise UsageError(
            f"web needs {error.name or 'packages'} of the extra `web`, not installed: {INSTALL_COMMAND}"
        ) from error
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token and (len(token) < TOKEN_LENGTH or not token.isascii() or not token.isprintable()):
        raise UsageError(
            f"{TOKEN_VARIABLE} is too short or has special characters; set at least "
            f"{TOKEN_LENGTH} letters and digits"
        )
    return ServerOptions(host, port, token=token, **more)


def _check_warehouse(warehouse: str) -> None:
    """Raise UsageError for a folder that does not exist, and Refused for a URL that no warehouse can have."""
    if "://" not in warehouse:
        if not Path(warehouse).is_dir():
            raise UsageError(f"--warehouse: there is no folder {warehouse}; dibs spark history creates it")
        return
    try:
        from dibs.spark.history.warehouse import warehouse_location  # noqa: PLC0415 - an extra may be missing
    except (ImportError, ConfigurationError):
        # The page History names the missing package.
        return
    warehouse_location(warehouse)
