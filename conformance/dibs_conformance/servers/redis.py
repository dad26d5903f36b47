"""A private Redis server, with a small client that needs no library."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dibs_conformance.servers.processes import LOOPBACK, Server, ServerBinary, find_redis, find_valkey, make

#: Options without persistence. Tests that need persistence pass other options.
IN_MEMORY = {"save": "", "appendonly": "no"}


class RedisServer(Server):
    """A private Redis. `options` are settings of redis.conf."""

    def __init__(self, found: ServerBinary, options: Mapping[str, str]) -> None:
        super().__init__()
        self.found = found
        self.version = found.version
        self.password = secrets.token_hex(16)
        self.options = dict(options)

    @property
    def socket(self) -> Path:
        return self.folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://:{self.password}@{self.socket}"

    def command(self) -> Sequence[str]:
        options = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "daemonize": "no",
            "requirepass": self.password,
            "masterauth": self.password,
            **self.options,
        }
        # A file instead of arguments: every user of the machine can read a command line.
        conf = self.folder / "redis.conf"
        conf.write_text("".join(f"{name} {_quote(value)}\n" for name, value in options.items()))
        return [str(self.found.path), str(conf)]

    def is_ready(self) -> bool:
        try:
            return bool(self.execute("PING") == "PONG")
        except (OSError, RedisError):
            return False

    def execute(self, *words: str | bytes | int) -> Any:
        """Send one command on a new connection and return its reply.

        Raise RedisError for an error reply, and OSError for a failed connection.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
            wire.settimeout(10)
            wire.connect(str(self.socket))
            stream = wire.makefile("rwb")
            stream.write(_encode_command(("AUTH", self.password)) + _encode_command(words))
            stream.flush()
            _read_reply(stream)
            return _read_reply(stream)

    def forget_code(self) -> None:
        """Remove all scripts, and all functions if the server has them, as a restart does."""
        self.execute("SCRIPT", "FLUSH")
        with suppress(RedisError):  # Redis 6.2 knows no functions
            self.execute("FUNCTION", "FLUSH")


class RedisError(Exception):
    """Redis replied with an error."""


def start_redis(**options: str) -> RedisServer:
    """Start a Redis, by default without persistence. `options` are settings, such as `appendonly="yes"`."""
    return _start(find_redis(), options)


def start_valkey(**options: str) -> RedisServer:
    """Start a Valkey, by default without persistence. `options` are settings, such as `appendonly="yes"`."""
    return _start(find_valkey(), options)


def _start(found: ServerBinary, options: Mapping[str, str]) -> RedisServer:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    server = RedisServer(found, {**IN_MEMORY, **named})
    return make(server, server.start)


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _encode_command(words: Sequence[str | bytes | int]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _read_reply(stream: Any) -> Any:
    line = stream.readline()
    if not line:
        raise ConnectionError("Redis closed the connection")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise RedisError(rest)
    if kind == b"$":
        return None if rest == "-1" else stream.read(int(rest) + 2)[:-2].decode("utf-8", "replace")
    if kind == b"*":
        return [_read_reply(stream) for _ in range(int(rest))]
    return int(rest) if kind == b":" else rest
