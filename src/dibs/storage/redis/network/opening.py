"""The steps to open a Redis storage: read the options of its URL, create its servers, and check them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.exceptions import NoPermissionError

from dibs.errors import StorageTooNew, StorageUnavailable, UnknownOption
from dibs.storage.addresses import parse_address, redact_url, show_option
from dibs.storage.redis import keys
from dibs.storage.redis.network.address import (
    MAX_CONNECTIONS,
    Remap,
    is_cluster_url,
    is_sentinel_url,
    keep_address,
    parse_cluster_url,
    read_address_map,
)
from dibs.storage.redis.network.client_settings import ClientSettings
from dibs.storage.redis.network.cluster import Cluster
from dibs.storage.redis.network.connections import RedisConnections
from dibs.storage.redis.network.driver import AbstractConnection, connection_factory, factory_of_class
from dibs.storage.redis.network.servers import OneServer, Servers
from dibs.storage.registry import read_flag, read_max_connections

if TYPE_CHECKING:
    from dibs.storage.redis.network.sentinel import SentinelAddress

#: The URL options of dibs. Any other option belongs to redis-py.
OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "prefix": str,
    "poll": float,
    "allow_eviction": read_flag,
    "max_connections": read_max_connections,
    "address_map": read_address_map,
}
#: The options whose value is also checked and converted if it is passed by name.
CHECKED: Final = {"max_connections", "address_map"}
MIN_VERSION: Final = (6, 2)
#: Version of the layout of keys and records. A version of dibs that knows only older layouts refuses to open.
#: The first use of a queue raises an older version, because a replica is opened without a write.
LAYOUT: Final = 1


def split_options(url: str, named: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Separate the options of dibs from a URL. The rest of its query belongs to redis-py.

    Return the URL without these options, and the options, with those in `named` added or replaced. Raise
    UnknownOption for a name in `named` or a value that dibs does not know.
    """
    unknown = sorted(set(named) - set(OPTIONS))
    if unknown:
        raise UnknownOption(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(OPTIONS))}")
    check_database(url)
    parts = urlsplit(url)
    options: dict[str, Any] = {}
    rest: list[tuple[str, str]] = []
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            rest.append((name, text))
            continue
        options[name] = _read_option(name, text)
    options |= {
        name: _read_option(name, value) if name in CHECKED else value for name, value in named.items()
    }
    if "address_map" in options and not is_cluster_url(url):
        raise UnknownOption("option 'address_map' is only for clusters; remove it, or write redis+cluster://")
    return urlunsplit(parts._replace(query=urlencode(rest))), options


def _read_option(name: str, value: Any) -> Any:
    try:
        return OPTIONS[name](value)
    except (TypeError, ValueError):
        raise UnknownOption(
            f"option {name!r} has the invalid value {value!r}; write prefix=NAME, poll=SECONDS, "
            "allow_eviction=1, max_connections=NUMBER or address_map=HOST:PORT=HOST:PORT,..."
        ) from None


def check_database(url: str) -> None:
    """Raise UnknownOption for a database that is not a number. redis-py would use database 0."""
    address = parse_address(url)
    database = address.path.strip("/")
    if address.scheme in ("redis", "rediss") and database and not (database.isascii() and database.isdigit()):
        raise UnknownOption(
            f"the database in the {address.scheme} URL must be a number, as in {address.scheme}://host:6379/0"
        )


def servers_for(
    url: str,
    *,
    client: ClientSettings | None = None,
    max_connections: int = MAX_CONNECTIONS,
    address_map: Remap | None = None,
) -> Servers:
    """Return the server or the cluster of a URL, not yet connected.

    With `client`, use its settings; `url` is then its URL. Raise UnknownOption for a wrong option.
    """
    if not is_cluster_url(url):
        sentinel = _sentinel_of(url) if is_sentinel_url(url) and client is None else None
        make = _checked_factory(url, sentinel.settings if sentinel else client)
        connections = RedisConnections(make, redact_url(url), max_connections)
        return OneServer(connections, int(make().db or 0), sentinel)
    seeds, single = parse_cluster_url(url)
    make = _checked_factory(single, client)
    return Cluster(
        lambda address: make(host=address[0], port=address[1]),
        seeds,
        redact_url(url),
        max_connections,
        address_map or (keep_address if client is None else client.remap),
    )


def _sentinel_of(url: str) -> SentinelAddress:
    from dibs.storage.redis.network.sentinel import SentinelAddress  # noqa: PLC0415 - few programs need it

    try:
        return SentinelAddress(url)
    except (TypeError, ValueError) as error:
        raise UnknownOption(_describe_url_error(error, url)) from None


def _checked_factory(url: str, client: ClientSettings | None) -> Callable[..., AbstractConnection]:
    """Return a function that creates connections for a URL. Create one, to raise UnknownOption now."""
    try:
        if client is not None:
            return factory_of_class(client.connection_class, client.options)
        make = connection_factory(url)
        make()
    except (TypeError, ValueError) as error:
        raise UnknownOption(_describe_url_error(error, url)) from None
    return make


def _describe_url_error(error: Exception, url: str) -> str:
    """Return a message for an error of redis-py, without texts of it that may quote the password."""
    if found := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
        known, name = ", ".join(sorted(OPTIONS)), show_option(found[1], url)
        return f"unknown option {name}; known: {known}, and the options of redis-py's connections"
    if found := re.match(r"Invalid value for '(\w+)' in connection URL", str(error)):
        return f"option {show_option(found[1], url)} of the Redis URL has an invalid value; correct it"
    return "the Redis URL cannot be used; write redis://user:password@host:port/database"


async def check_servers(servers: Servers, url: str, *, allow_eviction: bool) -> str:
    """Check version and eviction of each server, and return their durability as a sentence.

    Raise StorageError if a server cannot keep jobs. A server that forbids INFO is not checked.
    """
    try:
        infos = await read_infos(servers)
    except NoPermissionError:
        return "unknown: the server does not permit INFO to this account, so dibs cannot check its settings"
    for info in infos:
        _check_server(info, url, allow_eviction=allow_eviction)
    return durability(infos)


async def read_infos(servers: Servers) -> list[dict[str, str]]:
    """Return the reply to INFO of each server."""
    return [parse_info(raw) for raw in await servers.call_all("INFO")]


def parse_info(raw: bytes) -> dict[str, str]:
    """Return the fields of a reply to INFO."""
    pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def _check_server(info: Mapping[str, str], url: str, *, allow_eviction: bool) -> None:
    found = re.match(r"(\d+)\.(\d+)", info.get("redis_version", ""))
    if found and (int(found[1]), int(found[2])) < MIN_VERSION:
        raise StorageUnavailable(f"{url} is Redis {found[0]}; dibs needs 6.2 or newer: upgrade the server")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not allow_eviction:
        raise StorageUnavailable(
            f"{url} may evict keys (maxmemory-policy {policy}) and so lose jobs: set the policy noeviction, "
            "or accept the loss with allow_eviction=1"
        )


async def is_current_layout(servers: Servers, url: str, prefix: str) -> bool:
    """Return whether the version of the layout is LAYOUT; False if it is older or missing.

    Raise StorageTooNew if it is newer.
    """
    key = keys.version_key(prefix)
    written = int(await servers.call(key, "GET", key, repeatable=True) or 0)
    if written > LAYOUT:
        raise StorageTooNew(
            f"{url} was written by a newer dibs (layout {written}, here {LAYOUT}); upgrade this dibs"
        )
    return written == LAYOUT


def durability(infos: list[dict[str, str]]) -> str:
    """Describe the losses of a crash, by the weakest server: one without an append-only file is `weak`."""
    if all(info.get("aof_enabled") == "1" for info in infos):
        return "as the server's append-only file: by default at most the last second is lost with the machine"
    return (
        "weak: the server keeps no append-only file (set appendonly yes), so a crash loses all changes since "
        "its last snapshot"
    )
