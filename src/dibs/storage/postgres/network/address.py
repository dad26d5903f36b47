"""The URL of a place: what in it is ours, what is the driver's, and how it may be shown."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict

from dibs.errors import UnknownOption

_OURS: Final = {"schema": str, "poll": float}
_SECRETS: Final = {"password", "sslpassword", "passfile"}


class Address(Struct, frozen=True, kw_only=True):
    """Where a storage is. Its parameters hold the password, so it is never shown."""

    params: dict[str, Any]
    schema: str
    poll: float

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    @property
    def hosts(self) -> str:
        """Host and port, as a person would name them."""
        hosts = str(self.params.get("host") or "localhost").split(",")
        ports = str(self.params.get("port") or "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        return ", ".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))

    @property
    def shown(self) -> str:
        """The URL without its secrets."""
        params = {name: str(value) for name, value in self.params.items() if name not in _SECRETS}
        user, name = params.pop("user", ""), params.pop("dbname", "")
        host, port = params.pop("host", ""), params.pop("port", "")
        if host.startswith("/") or "," in host or ":" in host:
            params |= {"host": host, "port": port} if port else {"host": host}
            host = port = ""
        where = (f"{quote(user, safe='')}@" if user else "") + host + (f":{port}" if port else "")
        query = urlencode({**params, "schema": self.schema}, quote_via=quote)
        return f"postgresql://{where}/{quote(name, safe='')}?{query}"


def read(url: str, options: dict[str, Any]) -> Address:
    """Read a URL and options given by name. Raises UnknownOption; what is wrong is named, never repeated."""
    for name in sorted(set(options) - set(_OURS)):
        raise UnknownOption(f"unknown option {name!r}; known: {', '.join(sorted(_OURS))}")
    place, _, query = url.partition("?")
    named, drivers = _sorted_out(query)
    named |= options
    scheme, _, rest = place.partition(":")
    if not rest.startswith("//"):
        raise UnknownOption(f"{scheme}: needs two slashes, as in postgresql://user@host/database")
    rebuilt = f"postgresql:{rest}" + (f"?{urlencode(drivers, quote_via=quote)}" if drivers else "")
    return Address(params=_conninfo(rebuilt), schema=named.get("schema", "dibs"), poll=named.get("poll", 1.0))


def _sorted_out(query: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    ours: dict[str, Any] = {}
    drivers = []
    # As libpq reads it: a plus sign is a plus sign.
    for name, _, text in (part.partition("=") for part in query.split("&") if part):
        name, text = unquote(name), unquote(text)  # noqa: PLW2901
        kind = _OURS.get(name)
        if kind is None:
            drivers.append((name, text))
            continue
        try:
            ours[name] = kind(text)
        except ValueError:
            raise UnknownOption(f"option {name!r} cannot be read from {text!r}") from None
    return ours, drivers


def _conninfo(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        why = str(error)
        if "query parameter" in why:
            name = why.partition('"')[2].partition('"')[0]
            known = ", ".join(sorted(_OURS))
            raise UnknownOption(f"unknown option {name!r}; known: {known}, and those of libpq") from None
        # The driver quotes the part it could not read, which may be the password.
        raise UnknownOption(
            "the postgresql: URL cannot be read; special characters in user and password are written as %XX"
        ) from None
