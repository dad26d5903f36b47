"""The address of a Redis storage: the seeds of a cluster, the translation of node addresses, and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from dibs.errors import UnknownOption

#: Host and port of a server.
NodeAddress = tuple[str, int]
Remap = Callable[[NodeAddress], NodeAddress]

#: The default of the option `max_connections`: the most requests in flight to one server, and so the most
#: connections for them. Blocking claims and the subscription have further connections.
MAX_CONNECTIONS: Final = 64
DEFAULT_PORT: Final = 6379
CLUSTER_SUFFIX: Final = "+cluster"
SENTINEL_SUFFIX: Final = "+sentinel"
_HOST: Final = re.compile(r"(?P<host>\[[^]]+\]|[^:\[\]]*)(?::(?P<port>\d{1,5}))?")


def is_cluster_url(url: str) -> bool:
    return urlsplit(url).scheme.endswith(CLUSTER_SUFFIX)


def is_sentinel_url(url: str) -> bool:
    return urlsplit(url).scheme.endswith(SENTINEL_SUFFIX)


def parse_cluster_url(url: str) -> tuple[tuple[NodeAddress, ...], str]:
    """Return the seeds of a cluster URL, and the URL of its first seed as a single server.

    `rediss+cluster://:secret@a:1,b:2` gives (("a", 1), ("b", 2)) and `rediss://:secret@a:1`. Raise
    UnknownOption for a host that cannot be parsed and for a database other than 0.
    """
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    seeds = tuple(parse_node(text) for text in hosts.split(","))
    if parts.path.strip("/") not in ("", "0"):
        raise UnknownOption(f"database {parts.path[1:]!r}: a Redis Cluster has only database 0; leave it out")
    host, port = seeds[0]
    single = SplitResult(
        parts.scheme.removesuffix(CLUSTER_SUFFIX),
        f"{user}{at}{f'[{host}]' if ':' in host else host}:{port}",
        parts.path,
        parts.query,
        "",
    )
    return seeds, urlunsplit(single)


def parse_node(text: str, default_port: int = DEFAULT_PORT) -> NodeAddress:
    """Return host and port of `host:port`, `host` or `[IPv6 address]:port`. Raise UnknownOption."""
    found = _HOST.fullmatch(text.strip())
    port = int(found["port"] or default_port) if found else 0
    if not found or not 0 < port < 65536:
        raise UnknownOption(f"node {text!r} is not an address; write HOST:PORT, as in redis-1:6379")
    return (found["host"].strip("[]") or "localhost", port)


# -- options ---------------------------------------------------------------------------------------------


def read_address_map(value: str | Mapping[str, str] | Remap) -> Remap:
    """Return the function of the option `address_map`, which translates the addresses of nodes.

    The option is text such as `10.0.0.1:6379=redis.example.org:7001,...`, a mapping of such addresses, or a
    function of (host, port). An address that is not in it stays as it is. Raise ValueError.
    """
    if callable(value):
        return value
    if isinstance(value, str):
        pairs = [part.partition("=")[::2] for part in value.split(",")]
    elif isinstance(value, Mapping):
        pairs = [*value.items()]
    else:
        raise ValueError(value)  # noqa: TRY004 - the caller converts it to UnknownOption, as for text
    if not all(inside and outside for inside, outside in pairs):
        raise ValueError(value)
    addresses = {parse_node(inside): parse_node(outside) for inside, outside in pairs}
    return lambda address: addresses.get(address, address)


def keep_address(address: NodeAddress) -> NodeAddress:
    """Return the address unchanged. The default of the option `address_map`."""
    return address
