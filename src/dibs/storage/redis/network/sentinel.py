"""The primary of a service that Redis Sentinel watches: `redis+sentinel://a:26379,b,c/main/0`."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio.connection import ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel

from dibs.errors import UnknownOption
from dibs.storage.redis.network.address import SENTINEL_SUFFIX, parse_node
from dibs.storage.redis.network.client_settings import ClientSettings, read_client

SENTINEL_PORT: Final = 26379
#: Seconds until the next Sentinel is asked.
_TIMEOUT: Final = 1.0
#: The options of the URL for the Sentinels themselves. User and password of the URL are those of the servers.
_OPTIONS: Final = ("sentinel_username", "sentinel_password")


class SentinelAddress:
    """The Sentinels of a URL. Each connection that `settings` makes asks them for the primary.

    Raise UnknownOption for a URL without a service, and redis-py's TypeError or ValueError for a bad option.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        service, _, database = parts.path.strip("/").partition("/")
        if not service or (database and not database.isdecimal()):
            raise UnknownOption(
                "the redis+sentinel URL needs the name of a service, and may have a number of a database: "
                "redis+sentinel://sentinel-1,sentinel-2:26379/main/0"
            )
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        own = {name.removeprefix("sentinel_"): query.pop(name) for name in _OPTIONS if name in query}
        # redis-py reads the options of a single server; the host in this URL is never used.
        scheme = parts.scheme.removesuffix(SENTINEL_SUFFIX)
        single = urlunsplit((scheme, f"{user}{at}sentinel", f"/{database or 0}", urlencode(query), ""))
        pool = ConnectionPool.from_url(single)
        # Connections by Sentinel take any option without a word.
        pool.connection_class(**pool.connection_kwargs)
        options: dict[str, Any] = {**pool.connection_kwargs}
        tls: dict[str, Any] = {name: value for name, value in options.items() if name.startswith("ssl_")}
        if issubclass(pool.connection_class, SSLConnection):
            tls["ssl"] = options["ssl"] = True
        for name in ("host", "port"):
            options.pop(name, None)
        times = {"socket_connect_timeout": _TIMEOUT, "socket_timeout": _TIMEOUT}
        nodes = [parse_node(text, SENTINEL_PORT) for text in hosts.split(",")]
        self._sentinel: Any = Sentinel(nodes, sentinel_kwargs={**times, **tls, **own})  # type: ignore[no-untyped-call]
        self.settings: ClientSettings = read_client(self._sentinel.master_for(service, **options))

    async def close(self) -> None:
        """Close the connections to the Sentinels."""
        await asyncio.gather(*(each.aclose() for each in self._sentinel.sentinels))
