"""The examination of a Redis server: eviction, persistence, memory, connections and layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace
from redis.exceptions import NoPermissionError, RedisError

from dibs.model.findings import Finding, Rule
from dibs.storage.diagnosis import layout_findings
from dibs.storage.redis import keys
from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.opening import LAYOUT, read_infos
from dibs.storage.redis.network.rights import FUNCTION_RIGHTS, find_rights, needed_rights
from dibs.storage.redis.network.servers import Servers

#: The parts of the memory and of the connections from which on a server counts as nearly full.
FULL_MEMORY: Final = 0.9
FULL_CLIENTS: Final = 0.8

EVICTION: Final = Rule(
    "redis-eviction",
    "error",
    "A full Redis removes keys, and with them jobs. dibs refuses such a server without allow_eviction=1.",
    "Set `maxmemory-policy noeviction`, or use a Redis of its own for jobs.",
)
NO_PERSISTENCE: Final = Rule(
    "redis-no-persistence",
    "warning",
    "A crash or a restart of the server loses accepted jobs.",
    'Set `appendonly yes`; the guide "Redis, a cluster or Valkey" explains the settings.',
)
FSYNC_OFF: Final = Rule(
    "redis-fsync-off",
    "warning",
    "The system decides when jobs reach the disk: a crash of the machine may lose the last 30 seconds.",
    "Set `appendfsync everysec`, or `always`.",
)
SAVE_FAILED: Final = Rule(
    "redis-save-failed",
    "error",
    "Redis could not write its file. It may refuse writes, and a restart loses jobs since the last save.",
    "Read the log of the server; free disk space or correct the rights of its folder.",
)
MEMORY: Final = Rule(
    "redis-memory",
    "warning",
    "At the limit Redis refuses enqueues; workers go on, and so free memory.",
    "Raise `maxmemory`, or shorten the retention of outcomes; `dibs counts` shows what is stored.",
)
CONNECTIONS: Final = Rule(
    "redis-connections",
    "warning",
    "At the limit Redis refuses connections, and programs raise StorageUnavailable.",
    "Raise `maxclients`, or lower max_connections of the apps.",
)
REPLICA: Final = Rule(
    "redis-replica",
    "warning",
    "The server is a read-only replica: enqueues and workers raise StorageReadOnly.",
    "Give the address of its primary.",
)
RIGHTS: Final = Rule(
    "redis-rights",
    "error",
    "dibs does not open the server: a script that lacks a right would stop halfway.",
    "",
    blocks=True,
)
NO_FUNCTIONS: Final = Rule(
    "redis-functions",
    "note",
    "Each call defines the functions of its Lua script again, which takes 40 µs of the server.",
    f"Let the account load and call functions: ACL SETUSER with its name and {FUNCTION_RIGHTS}.",
)
UNEXAMINED: Final = Rule(
    "redis-unexamined",
    "note",
    "Nothing checks whether the server evicts jobs, keeps them on disk, or is nearly full.",
    "Give the account the right to run INFO: ACL SETUSER with its name and +info.",
)
RULES: Final = (
    EVICTION,
    NO_PERSISTENCE,
    FSYNC_OFF,
    SAVE_FAILED,
    MEMORY,
    CONNECTIONS,
    REPLICA,
    RIGHTS,
    NO_FUNCTIONS,
    UNEXAMINED,
)


async def diagnose(servers: Servers, url: str, prefix: str, *, allow_eviction: bool) -> list[Finding]:
    """Return the findings about the servers of a storage, and close their connections. Raise StorageError."""
    try:
        rights = await find_rights(servers, prefix)
        if rights.missing:
            rule = replace(RIGHTS, advice=f"Run ACL SETUSER with its name and: {needed_rights(prefix)}")
            return [rule.finding(f"the account lacks {' '.join(rights.missing)}")]
        found = await _examine_servers(servers, allow_eviction=allow_eviction)
        if rights.functions == "forbidden":
            found.append(NO_FUNCTIONS.finding(f"the account lacks {FUNCTION_RIGHTS}"))
        key = keys.version_key(prefix)
        layout = int(await servers.call(key, "GET", key, repeatable=True) or LAYOUT)
    except RedisError as error:
        raise translate_error(error, url) from None
    finally:
        await servers.close()
    return [*layout_findings(layout, LAYOUT), *found]


async def _examine_servers(servers: Servers, *, allow_eviction: bool) -> list[Finding]:
    try:
        infos = await read_infos(servers)
    except NoPermissionError:
        return [UNEXAMINED.finding("the account may not run INFO")]
    if len(infos) == 1:
        infos = [{**(await _read_settings(servers)), **infos[0]}]
    return [finding for each in infos for finding in _examine(each, allow_eviction=allow_eviction)]


async def _read_settings(servers: Servers) -> dict[str, str]:
    """Return settings that INFO does not have; none if the server forbids CONFIG, as hosted ones do."""
    read: dict[str, str] = {}
    for name in ("save", "appendfsync"):
        try:
            (reply,) = await servers.call_all("CONFIG", "GET", name)
        except RedisError:
            return {}
        items = (
            list(reply.items())
            if isinstance(reply, dict)
            else list(zip(reply[::2], reply[1::2], strict=True))
        )
        read |= {_text(key): _text(value) for key, value in items}
    return read


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _examine(info: Mapping[str, str], *, allow_eviction: bool) -> Iterator[Finding]:
    server = f"{info.get('redis_mode', 'server')} on port {info.get('tcp_port', '?')}"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        rule = replace(EVICTION, blocks=not allow_eviction)
        yield rule.finding(f"maxmemory-policy is {policy}", server)
    if info.get("role") == "slave":
        yield REPLICA.finding(f"its primary is {info.get('master_host')}:{info.get('master_port')}", server)
    yield from _examine_persistence(info, server)
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if limit and used > FULL_MEMORY * limit:
        yield MEMORY.finding(f"{used:,} of {limit:,} bytes are used ({100 * used // limit} %)", server)
    clients, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if most and clients > FULL_CLIENTS * most:
        yield CONNECTIONS.finding(f"{clients:,} of {most:,} connections are open", server)


def _examine_persistence(info: Mapping[str, str], server: str) -> Iterator[Finding]:
    if info.get("aof_enabled") != "1":
        saves = info.get("save")
        snapshots = (
            "snapshots are off" if saves == "" else f"snapshots are taken by {saves or 'its default'!r}"
        )
        yield NO_PERSISTENCE.finding(f"appendonly is no, and {snapshots}", server)
    elif info.get("appendfsync") == "no":
        yield FSYNC_OFF.finding("appendfsync is no", server)
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        yield SAVE_FAILED.finding(", ".join(f"{name} is {info[name]}" for name in failed), server)
