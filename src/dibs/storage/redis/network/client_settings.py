"""The connection settings of a client or a pool of redis-py that an application hands over.

dibs opens connections of its own with these settings. It reads and writes a connection by its own code, with
one request at a time, so it cannot share connections with the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from attrs import field, frozen
from redis.asyncio import connection as async_connections

from dibs.errors import ConfigurationError
from dibs.storage.redis.network.address import CLUSTER_SUFFIX, DEFAULT_PORT, NodeAddress, Remap, keep_address
from dibs.storage.redis.network.driver import AbstractConnection

#: The options of a connection that dibs takes over, beside those of TLS. dibs has its own timeouts, retries,
#: protocol version and pool.
TAKEN: Final = frozenset({
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name",
    "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_type",
    "redis_connect_func",
    # A pool of redis.asyncio.sentinel. Each connection asks it for the primary.
    "connection_pool",
})  # fmt: skip
#: Options that the blocking client of redis-py has and its asyncio client lacks.
BLOCKING_ONLY: Final = (
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
)


@frozen(kw_only=True)
class ClientSettings:
    """The class and the options of connections, and for a cluster its seeds."""

    connection_class: type[AbstractConnection]
    #: The options of each connection, the password among them.
    options: Mapping[str, Any] = field(repr=False)
    #: The nodes that the client of a cluster knows; empty for a single server.
    seeds: tuple[NodeAddress, ...] = ()
    remap: Remap = keep_address
    #: The pool that was handed over. Connections by Sentinel ask it for the primary by a weak reference.
    pool: object = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The URL of the server, with the password if it is a text. It has no options."""
        tls = issubclass(self.connection_class, async_connections.SSLConnection)
        scheme = ("rediss" if tls else "redis") + (CLUSTER_SUFFIX if self.seeds else "")
        user = self._userinfo()
        if path := self.options.get("path"):
            return f"unix://{user}{path}"
        if (pool := self.options.get("connection_pool")) is not None:
            return f"{scheme}://{user}{quote(str(pool.service_name), safe='')}"
        one = (self.options.get("host") or "localhost", int(self.options.get("port") or DEFAULT_PORT))
        hosts = ",".join(_join_host(host, port) for host, port in self.seeds or (one,))
        database = "" if self.seeds else f"/{self.options.get('db') or 0}"
        return f"{scheme}://{user}{hosts}{database}"

    def _userinfo(self) -> str:
        user, password = self.options.get("username") or "", self.options.get("password") or ""
        password = password.decode() if isinstance(password, bytes) else password
        return f"{quote(str(user), safe='')}:{quote(str(password), safe='')}@" if user or password else ""


def _join_host(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def client_options(client: object) -> tuple[str, dict[str, Any]]:
    """Return the URL and the options of `open_url` for a client or a pool of redis-py.

    Raise ConfigurationError for an object or a setting that dibs cannot use.
    """
    settings = read_client(client)
    return settings.url, {"client": settings}


def read_client(client: Any) -> ClientSettings:
    """Return the connection settings of a client or a pool of redis-py, blocking or asyncio.

    Raise ConfigurationError for any other object, and for settings that dibs cannot use.
    """
    if (nodes := getattr(client, "nodes_manager", None)) is not None:
        return _read_cluster(nodes)
    pool = getattr(client, "connection_pool", client)
    connection_class = getattr(pool, "connection_class", None)
    options = getattr(pool, "connection_kwargs", None)
    if not isinstance(connection_class, type) or not isinstance(options, Mapping):
        raise ConfigurationError(
            f"a {type(client).__name__} is not a client or a pool of redis-py; pass a Redis, a RedisCluster "
            "or a ConnectionPool of redis.asyncio or of redis"
        )
    kind = _async_class(connection_class)
    if "connect_to" in vars(connection_class) and kind is not connection_class:
        raise ConfigurationError(
            "this client finds its server by Sentinel: pass one of redis.asyncio.sentinel"
        )
    if kind is not connection_class and options.get("redis_connect_func") is not None:
        raise ConfigurationError("redis_connect_func of a blocking client cannot be called here; remove it")
    return ClientSettings(connection_class=kind, options=_select_options(options), pool=pool)


def _read_cluster(nodes: Any) -> ClientSettings:
    options = {**nodes.connection_kwargs}
    # A RedisCluster sets this function to read from replicas, which dibs does not.
    options.pop("redis_connect_func", None)
    startup = list(nodes.startup_nodes.values())
    kind = options.get("connection_class") or getattr(startup[0], "connection_class", None)
    if kind is None:
        tls = options.get("ssl")
        kind = async_connections.SSLConnection if tls else async_connections.Connection
    return ClientSettings(
        connection_class=_async_class(kind),
        options=_select_options(options),
        seeds=tuple((node.host, int(node.port)) for node in startup),
        remap=nodes.address_remap or keep_address,
    )


def _async_class(kind: type) -> type[AbstractConnection]:
    """Return the asyncio class of redis-py for a class of connections."""
    if issubclass(kind, AbstractConnection):
        return kind
    for base in kind.__mro__:
        if base.__module__ == "redis.connection" and hasattr(async_connections, base.__name__):
            found: type[AbstractConnection] = getattr(async_connections, base.__name__)
            return found
    raise ConfigurationError(
        f"connections of the class {kind.__name__} are unknown; pass a client of redis-py"
    )


def _select_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in BLOCKING_ONLY:
        if options.get(name):
            raise ConfigurationError(
                f"{name} is an option of blocking clients only; pass a client without it"
            )
    return {
        name: value
        for name, value in options.items()
        if value is not None and (name in TAKEN or name.startswith("ssl_")) and name not in BLOCKING_ONLY
    }
