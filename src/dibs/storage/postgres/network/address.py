"""The URL of a Postgres storage: its options for dibs and for the driver, and a form without secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

import psycopg
from attrs import field, frozen
from psycopg.conninfo import conninfo_to_dict

from dibs.errors import ConfigurationError, UnknownOption
from dibs.storage.addresses import parse_address, show_option
from dibs.storage.postgres.network.pool_settings import PoolSettings
from dibs.storage.registry import check_poll, read_flag, read_max_connections

_OURS: Final[dict[str, Callable[[Any], Any]]] = {
    "schema": str,
    "poll": float,
    "max_connections": read_max_connections,
    "allow_others": read_flag,
}
#: The default of `max_connections`: the most connections that one storage has open at the same time for its
#: statements. A listener and a vacuum have further connections.
MAX_CONNECTIONS: Final = 10
_SECRETS: Final = {
    "password", "sslpassword", "passfile", "oauth_client_secret", "scram_client_key", "scram_server_key"
}  # fmt: skip
#: Parameters that dibs sets, and which messages leave out.
_OWN: Final = {"client_encoding"}


@frozen(kw_only=True)
class PostgresAddress:
    """A parsed URL of a Postgres storage. Its repr shows no password."""

    #: The driver's connection parameters, the password among them.
    params: dict[str, Any] = field(repr=False)
    #: The schema that holds the tables.
    schema: str
    #: The interval in seconds at which a wait reads its queues, in case a notification was lost.
    poll: float
    #: The limit of open connections for statements.
    max_connections: int = MAX_CONNECTIONS
    #: True if other roles may own the schema, or put functions into it, which then run with our rights.
    allow_others: bool = False
    #: The settings of a pool that was handed over; None without one.
    pool: PoolSettings | None = None

    def __repr__(self) -> str:
        return f"<Address {self.display_url}>"

    async def connection_params(self) -> dict[str, Any]:
        """Return the driver's parameters for a new connection, with those that functions of the pool give."""
        if self.pool is None or not self.pool.is_dynamic:
            return self.params
        return {**self.params, **await self.pool.read()}

    def connection_params_blocking(self) -> dict[str, Any]:
        """Return the parameters as `connection_params` does, without an event loop.

        Raise ConfigurationError if the pool has an async function, which cannot be called here.
        """
        if self.pool is None or not self.pool.is_dynamic:
            return self.params
        return {**self.params, **self.pool.read_blocking()}

    @property
    def hosts(self) -> str:
        """Host and port of each server, for messages, as in `localhost:5432`."""
        hosts = str(self.params.get("host") or "localhost").split(",")
        ports = str(self.params.get("port") or "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        return ", ".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))

    @property
    def display_url(self) -> str:
        """The URL without password and other secrets, for messages and logs."""
        params = {name: str(value) for name, value in self.params.items() if name not in _SECRETS | _OWN}
        user, name = params.pop("user", ""), params.pop("dbname", "")
        host, port = params.pop("host", ""), params.pop("port", "")
        if host.startswith("/") or "," in host or ":" in host:
            params |= {"host": host, "port": port} if port else {"host": host}
            host = port = ""
        where = (f"{quote(user, safe='')}@" if user else "") + host + (f":{port}" if port else "")
        query = urlencode({**params, "schema": self.schema}, quote_via=quote)
        return f"postgresql://{where}/{quote(name, safe='')}?{query}"


def parse_url(url: str, options: dict[str, Any]) -> PostgresAddress:
    """Parse a URL, with the options that were passed by name.

    Raise UnknownOption for an unknown option and for a URL that libpq cannot parse.
    """
    for name in sorted(set(options) - set(_OURS)):
        raise UnknownOption(f"unknown option {name!r}; known: {', '.join(sorted(_OURS))}")
    query = parse_address(url).query
    named, drivers = _split_query(query)
    named |= options
    if "max_connections" in options:
        named["max_connections"] = _read_option("max_connections", options["max_connections"])
    allow_others = named.get("allow_others", False)
    if allow_others not in (True, False):
        raise ConfigurationError(f"allow_others is {allow_others!r}; it must be True or False")
    rest = url.partition("?")[0].partition(":")[2]
    rebuilt = f"postgresql:{rest}" + (f"?{urlencode(drivers, quote_via=quote)}" if drivers else "")
    poll = named.get("poll", 1.0)
    check_poll(poll)
    params = _conninfo(rebuilt, url)
    if params.setdefault("client_encoding", "UTF8").upper() not in ("UTF8", "UTF-8"):
        raise UnknownOption("option 'client_encoding' must be UTF8, as dibs sets it; leave it out")
    if "," in str(params.get("host", "")):
        # Nearly every call writes, so of several hosts only the primary serves.
        params.setdefault("target_session_attrs", "read-write")
    return PostgresAddress(
        params=params,
        schema=named.get("schema", "dibs"),
        poll=poll,
        max_connections=named.get("max_connections", MAX_CONNECTIONS),
        allow_others=bool(allow_others),
    )


def _split_query(query: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Split the query of a URL into the options of dibs and the parameters of the driver."""
    ours: dict[str, Any] = {}
    drivers = []
    # libpq does not read a plus sign as a space, unlike urllib's parse_qs.
    for name, _, text in (part.partition("=") for part in query.split("&") if part):
        name, text = unquote(name), unquote(text)  # noqa: PLW2901
        if name in _OURS:
            ours[name] = _read_option(name, text)
        else:
            drivers.append((name, text))
    return ours, drivers


def _read_option(name: str, value: Any) -> Any:
    try:
        return _OURS[name](value)
    except (TypeError, ValueError):
        raise UnknownOption(
            f"option {name!r} has the invalid value {value!r}; write schema=NAME, poll=SECONDS, "
            "max_connections=NUMBER or allow_others=1"
        ) from None


def _conninfo(url: str, given: str) -> dict[str, Any]:
    """Return the parameters of a URL without the options of dibs. `given` is the URL with them."""
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        why = str(error)
        if "query parameter" in why:
            name = why.partition('"')[2].partition('"')[0]
            known = ", ".join(sorted(_OURS))
            raise UnknownOption(
                f"unknown option {show_option(name, given)}; known: {known}, and the parameters of libpq"
            ) from None
        # The driver's message quotes the part that it could not parse, which may be the password.
        raise UnknownOption(
            "the postgresql: URL cannot be parsed; write special characters in user and password as %XX"
        ) from None
