"""Stored places as small files: how each storage's data is packed, and restored at a new URL.

| scheme | packed as |
|---|---|
| `file` | a tar file of the directory |
| `sqlite` | the database file |
| `redis` | msgpack: a list of key, type and content |
| `postgresql` | the SQL of pg_dump with INSERT statements |

Each file is compressed with gzip. An older Redis cannot restore what DUMP of a newer one returns, and psycopg
cannot execute a dump with COPY, so these two are not used.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
import redis

#: The names of the places in a set. A name is a scheme, or a scheme with a variant after a hyphen.
PLACES: Final = ("file", "file-checkpoint", "sqlite", "redis", "postgresql")
#: The prefix of the keys and the name of the schema that stored places use.
NAME: Final = "stored_place"
_READ: Final[dict[str, Callable[[Any, bytes], Any]]] = {
    "string": lambda client, key: client.get(key),
    "hash": lambda client, key: client.hgetall(key),
    "zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    "set": lambda client, key: sorted(client.smembers(key)),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "stream": lambda client, key: (client.xrange(key), client.xinfo_stream(key)["last-generated-id"]),
}


def path_of(url: str) -> Path:
    return Path(url.partition(":")[2].partition("?")[0])


def pack(url: str, pg_dump: str) -> bytes:
    """Return the data of a closed storage. `pg_dump` is the path of that program."""
    match url.partition(":")[0]:
        case "file":
            return gzip.compress(_pack_folder(path_of(url)), mtime=0)
        case "sqlite":
            return gzip.compress(path_of(url).read_bytes(), mtime=0)
        case "redis":
            return gzip.compress(_pack_keys(url), mtime=0)
        case _:
            return gzip.compress(_dump_schema(url, pg_dump), mtime=0)


def restore(packed: bytes, url: str) -> None:
    """Write packed data to a new place, whose URL has the scheme of the packed storage."""
    data = gzip.decompress(packed)
    match url.partition(":")[0]:
        case "file":
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                archive.extractall(path_of(url), filter="data")
            path_of(url).chmod(0o700)
        case "sqlite":
            path_of(url).write_bytes(data)
        case "redis":
            _restore_keys(data, url)
        case _:
            with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
                connection.execute(data)


def _pack_folder(folder: Path) -> bytes:
    def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=without_owner)
    return out.getvalue()


def _pack_keys(url: str) -> bytes:
    found: list[Any] = []
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        for key in sorted(client.keys(f"{NAME}:*")):
            kind = client.type(key).decode()
            assert -1 == client.pttl(key), f"{key!r} expires, and a stored place has no time to live"
            found.append((key, kind, _READ[kind](client, key)))
    return msgspec.msgpack.encode(found)


def _restore_keys(data: bytes, url: str) -> None:
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        for key, kind, content in msgspec.msgpack.decode(data):
            match kind:
                case "string":
                    client.set(key, content)
                case "hash":
                    client.hset(key, mapping=content)
                case "zset":
                    client.zadd(key, dict(content))
                case "set":
                    client.sadd(key, *content)
                case "stream":
                    entries, last_id = content
                    for id, fields in entries:
                        client.xadd(key, fields, id=id)
                    client.execute_command("XSETID", key, last_id)
                case _:
                    client.rpush(key, *content)


def _dump_schema(url: str, pg_dump: str) -> bytes:
    words = [pg_dump, "--inserts", "--no-owner", "--no-privileges", f"--schema={NAME}", url.partition("?")[0]]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    # Leave out settings that older servers do not know (the header), and commands of psql (a backslash).
    header, create, body = text.partition("\nCREATE SCHEMA ")
    assert "\nSET " in header
    kept = "".join(line for line in body.splitlines(keepends=True) if not line.startswith("\\"))
    return f"SET check_function_bodies = false;{create}{kept}".encode()
