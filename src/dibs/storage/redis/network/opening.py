"""From a URL to servers, and what is asked of a server before it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dibs.errors import StorageReadOnly, StorageTooNew, StorageUnavailable, UnknownOption
from dibs.storage.redis import keys
from dibs.storage.redis.network.connections import Connections
from dibs.storage.redis.network.servers import Cluster, OneServer, Servers
from dibs.storage.registry import read_flag

#: Our own options; whatever else stands in the URL is the driver's.
OPTIONS: Final[dict[str, Callable[[str], Any]]] = {"prefix": str, "poll": float, "allow_eviction": read_flag}
#: Connections to one server at once.
MOST: Final = 64
BASELINE: Final = (6, 2)
#: What this version writes; one that knows less must not write beside it.
LAYOUT: Final = 1


def own_options(url: str, named: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a URL without our options, and these. Raises UnknownOption."""
    unknown = sorted(set(named) - set(OPTIONS))
    if unknown:
        raise UnknownOption(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(OPTIONS))}")
    parts = urlsplit(url)
    options: dict[str, Any] = {}
    rest: list[tuple[str, str]] = []
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            rest.append((name, text))
            continue
        try:
            options[name] = OPTIONS[name](text)
        except ValueError:
            raise UnknownOption(f"option {name!r} cannot be read from {text!r}") from None
    return urlunsplit(parts._replace(query=urlencode(rest))), {**options, **named}


def shown(url: str) -> str:
    """Return a URL without anything secret: scheme, place and database."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


def servers_at(url: str) -> Servers:
    """Return what a URL names, not yet connected. Raises UnknownOption."""
    parts = urlsplit(url)
    if parts.scheme == "redis+cluster":
        make = _maker(urlunsplit(parts._replace(scheme="redis")))
        first = (parts.hostname or "localhost", parts.port or 6379)
        return Cluster(lambda address: make(host=address[0], port=address[1]), first, parts.scheme, MOST)
    return OneServer(Connections(_maker(url), shown(url), MOST))


def _maker(url: str) -> Callable[..., AbstractConnection]:
    """Return what makes connections as the URL says. Raises UnknownOption."""
    try:
        # Each connect is one attempt: how often to try again is decided in connections.py. No driver_info:
        # the driver would look up its own version on disk for each connection, 2 ms, to tell the server.
        pool = ConnectionPool.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            decode_responses=False,
            driver_info=None,
        )
        kind, words = pool.connection_class, pool.connection_kwargs
        kind(**words)
    except (TypeError, ValueError) as error:
        raise UnknownOption(_without_secrets(_reason(error), url)) from None
    return lambda **place: kind(**{**words, **place})


def _reason(error: Exception) -> str:
    if found := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
        ours = ", ".join(sorted(OPTIONS))
        return f"unknown option {found[1]!r}; known: {ours}, and those of redis-py's connections"
    return f"the Redis URL cannot be used: {error}"


def _without_secrets(text: str, url: str) -> str:
    password = urlsplit(url).password
    return text.replace(password, "***") if password else text


async def inspect(servers: Servers, place: str, prefix: str, *, allow_eviction: bool) -> str:
    """Refuse servers that cannot keep jobs; return how durable they are, as a sentence."""
    infos = [_fields(raw) for raw in await servers.everywhere("INFO")]
    for info in infos:
        _check(info, place, allow_eviction=allow_eviction)
    await _check_layout(servers, place, prefix)
    return durability(infos)


def _fields(raw: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def _check(info: Mapping[str, str], place: str, *, allow_eviction: bool) -> None:
    found = re.match(r"(\d+)\.(\d+)", info.get("redis_version", ""))
    if found and (int(found[1]), int(found[2])) < BASELINE:
        raise StorageUnavailable(f"{place} is Redis {found[0]}; dibs needs 6.2 or newer: upgrade the server")
    if info.get("role") == "slave":
        raise StorageReadOnly(f"{place} is a read-only replica; give the address of its primary")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not allow_eviction:
        raise StorageUnavailable(
            f"{place} may evict keys (maxmemory-policy {policy}), and would lose jobs: set noeviction there, "
            "or accept the loss with allow_eviction=1"
        )


async def _check_layout(servers: Servers, place: str, prefix: str) -> None:
    key = keys.version(prefix)
    await servers.call(key, "SET", key, LAYOUT, "NX", repeatable=True)
    written = int(await servers.call(key, "GET", key, repeatable=True) or LAYOUT)
    if written > LAYOUT:
        raise StorageTooNew(
            f"{place} was written by a newer dibs (layout {written}, here {LAYOUT}); upgrade this one"
        )


def durability(infos: list[dict[str, str]]) -> str:
    """Return what survives what, by the weakest server."""
    if all(info.get("aof_enabled") == "1" for info in infos):
        return "as the server's append-only file: by default at most the last second is lost with the machine"
    return (
        "weak: the server keeps no append-only file (appendonly yes does), so what it did since its last "
        "snapshot is lost with it"
    )
