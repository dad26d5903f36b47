"""A Postgres of one's own, also for root, whom Postgres refuses to run as."""

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

from dibs_conformance.servers.binaries import Found, ServerUnavailable, find_postgres
from dibs_conformance.servers.processes import LOOPBACK, Server

USER = "dibs"
#: Survives the death of its processes, which is all a test can bring about, and is much faster.
FAST = {"fsync": "off", "max_connections": "200", "shared_buffers": "64MB"}
#: For root: another user within a namespace, where files stay root's own.
UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
STARTING_UP = b"57P03"


class PostgresServer(Server):
    """One Postgres; `options` are those of postgresql.conf."""

    farewell = signal.SIGINT  # fast: does not wait for clients to leave

    def __init__(self, found: Found, options: Mapping[str, str]) -> None:
        super().__init__()
        self.found = found
        self.version = found.version
        self.user = USER
        self.password = secrets.token_hex(16)
        self.options = dict(options)
        self._prefix, self._runs_as = _someone(found.path / "postgres")

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
        """Make the data folder, with one superuser and a password for everyone."""
        secret = self.folder / "password"
        secret.write_text(self.password)
        if user := self._runs_as.get("user"):
            for path in (self.folder, secret):
                os.chown(path, user, -1)
        command = [
            *(*self._prefix, str(self.found.path / "initdb"), "--pgdata", str(self.data)),
            *("--username", USER, "--pwfile", str(secret), "--auth", "scram-sha-256"),
            *("--no-sync", "--encoding", "UTF8", "--locale", "C"),
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=False, **self._runs_as)
        secret.unlink()
        if told.returncode:
            raise ServerUnavailable(f"initdb failed: {(told.stderr or told.stdout).strip()[-300:]}")

    def follow(self, primary: PostgresServer) -> None:
        """Make the data folder as a copy of a primary's, from which it will stream. Raises Missing."""
        self.password = primary.password
        if user := self._runs_as.get("user"):
            os.chown(self.folder, user, -1)
        command = [
            *(*self._prefix, str(self.found.path / "pg_basebackup"), "--pgdata", str(self.data)),
            *("--dbname", primary.url, "--checkpoint", "fast", "--write-recovery-conf", "--no-sync"),
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=False, **self._runs_as)
        if told.returncode:
            raise ServerUnavailable(f"pg_basebackup failed: {told.stderr.strip()[-300:]}")

    def command(self) -> Sequence[str]:
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **self.options,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return [*self._prefix, str(self.found.path / "postgres"), "-D", str(self.data), *words]

    def privileges(self) -> dict[str, Any]:
        return self._runs_as

    def answers(self) -> bool:
        """Say hello: a request for a password means it serves."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
                wire.settimeout(10)
                wire.connect(str(self.folder / f".s.PGSQL.{self.port}"))
                wire.sendall(_hello())
                answer = wire.recv(4096)
        except OSError:
            return False
        return bool(answer) and STARTING_UP not in answer


def start_postgres(**options: str) -> PostgresServer:
    """Make and start a Postgres. Raises Missing."""
    server = PostgresServer(find_postgres(), {**FAST, **options})
    try:
        server.initialise()
        server.start()
    except BaseException:
        server.remove()
        raise
    return server


def start_standby(primary: PostgresServer) -> PostgresServer:
    """Start a hot standby that streams from a primary. Raises Missing."""
    server = PostgresServer(primary.found, primary.options)
    try:
        server.follow(primary)
        server.start()
    except BaseException:
        server.remove()
        raise
    return server


def _hello() -> bytes:
    body = struct.pack("!i", 196608) + b"".join(
        word + b"\0" for word in (b"user", USER.encode(), b"database", b"postgres", b"")
    )
    return struct.pack("!i", len(body) + 4) + body


def _someone(program: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the prefix and the words of Popen with which Postgres consents to run. Raises Missing."""
    if os.geteuid() != 0:
        return (), {}
    for name in ("postgres", "nobody"):
        if (words := _as_user(name)) and _runs([str(program), "--version"], words):
            return (), words
    if shutil.which("unshare") and _runs([*UNSHARE, str(program), "--version"], {}):
        return UNSHARE, {}
    raise ServerUnavailable(
        f"Postgres does not run as root; neither postgres nor nobody can reach {program}, "
        "and `unshare --user` is not allowed here"
    )


def _as_user(name: str) -> dict[str, Any]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return {}
    # cwd: the present folder may be closed to that user.
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}


def _runs(command: Sequence[str], words: Mapping[str, Any]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False, **words).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
