"""A private Postgres. It also starts for root, although Postgres refuses to run as root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dibs_conformance.servers.processes import (
    LOOPBACK,
    Server,
    ServerBinary,
    ServerUnavailable,
    find_postgres,
    make,
)

USER = "dibs"
#: Settings for speed. Without fsync, data still survives a kill of the server; tests make no other crash.
FAST = {"fsync": "off", "max_connections": "200", "shared_buffers": "64MB"}
#: The command prefix for root: Postgres sees another user in a namespace, and the files still belong to root.
UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
STARTING_UP = b"57P03"


class PostgresServer(Server):
    """A private Postgres. `options` are settings of postgresql.conf."""

    stop_signal = signal.SIGINT  # SIGINT is a fast shutdown: it does not wait for clients to disconnect

    def __init__(self, found: ServerBinary, options: Mapping[str, str]) -> None:
        super().__init__()
        self.found = found
        self.version = found.version
        self.user = USER
        self.password = secrets.token_hex(16)
        self.options = dict(options)
        self._prefix, self._popen_options = _unprivileged_user(found.path / "postgres")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self.password}@{LOOPBACK}:{self.port}/postgres"

    @property
    def socket_url(self) -> str:
        return f"postgresql://{USER}:{self.password}@/postgres?host={self.folder}&port={self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def initialise(self) -> None:
        """Create the data folder, with one superuser and its password. Raise ServerUnavailable on failure."""
        secret = self.folder / "password"
        secret.write_text(self.password)
        if user := self._popen_options.get("user"):
            for path in (self.folder, secret):
                os.chown(path, user, -1)
        command = [
            *(*self._prefix, str(self.found.path / "initdb"), "--pgdata", str(self.data)),
            *("--username", USER, "--pwfile", str(secret), "--auth", "scram-sha-256"),
            *("--no-sync", "--encoding", "UTF8", "--locale", "C"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._popen_options)
        secret.unlink()
        if done.returncode:
            raise ServerUnavailable(f"initdb failed: {(done.stderr or done.stdout).strip()[-300:]}")

    def copy_primary(self, primary: PostgresServer) -> None:
        """Create the data folder of a standby from its primary. Raise ServerUnavailable on failure."""
        self.password = primary.password
        if user := self._popen_options.get("user"):
            os.chown(self.folder, user, -1)
        command = [
            *(*self._prefix, str(self.found.path / "pg_basebackup"), "--pgdata", str(self.data)),
            *("--dbname", primary.url, "--checkpoint", "fast", "--write-recovery-conf", "--no-sync"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._popen_options)
        if done.returncode:
            raise ServerUnavailable(f"pg_basebackup failed: {done.stderr.strip()[-300:]}")

    def command(self) -> Sequence[str]:
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **self.options,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return [*self._prefix, str(self.found.path / "postgres"), "-D", str(self.data), *words]

    def popen_options(self) -> dict[str, Any]:
        return self._popen_options

    def is_ready(self) -> bool:
        """Return whether the server asks a new connection for its password. Then it serves clients."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
                wire.settimeout(10)
                wire.connect(str(self.folder / f".s.PGSQL.{self.port}"))
                wire.sendall(_startup_message())
                answer = wire.recv(4096)
        except OSError:
            return False
        return bool(answer) and STARTING_UP not in answer


def start_postgres(**options: str) -> PostgresServer:
    """Create and start a Postgres. `options` are settings, such as `wal_level="logical"`."""
    server = PostgresServer(find_postgres(), {**FAST, **options})
    return make(server, server.initialise, server.start)


def start_standby(primary: PostgresServer, environ: Mapping[str, str] | None = None) -> PostgresServer:
    """Start a hot standby that streams from a primary. It has the user and the password of the primary."""
    server = PostgresServer(primary.found, primary.options)
    server.environ.update(environ or {})
    return make(server, lambda: server.copy_primary(primary), server.start)


def _startup_message() -> bytes:
    body = struct.pack("!i", 196608) + b"".join(
        word + b"\0" for word in (b"user", USER.encode(), b"database", b"postgres", b"")
    )
    return struct.pack("!i", len(body) + 4) + body


def _unprivileged_user(program: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return a command prefix and Popen options that start Postgres without root rights.

    Both are empty if this process does not run as root. Raise ServerUnavailable if no way works.
    """
    if os.geteuid() != 0:
        return (), {}
    for name in ("postgres", "nobody"):
        if (words := _popen_options_for(name)) and _can_run([str(program), "--version"], words):
            return (), words
    if shutil.which("unshare") and _can_run([*UNSHARE, str(program), "--version"], {}):
        return UNSHARE, {}
    raise ServerUnavailable(
        f"Postgres does not run as root; the users postgres and nobody cannot run {program}, "
        "and `unshare --user` is not allowed here"
    )


def _popen_options_for(name: str) -> dict[str, Any]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return {}
    # That user may have no access to the current folder, so the process starts in "/".
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}


def _can_run(command: Sequence[str], words: Mapping[str, Any]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False, **words).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
