"""Poolers: pgbouncer where there is one, and one of ours in transaction mode, as unkind as it may be.

Ours gives each transaction another session. It speaks just enough of Postgres's protocol: whole messages are
passed on, a session is taken with the first of a transaction and put back when the server says it is idle.
Nothing that belongs to a session reaches a client: no pid, no notification.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from psycopg.pq import ConnStatus, PGconn
from psycopg.pq.abc import PGconn as Session

from dibs_conformance.servers import PostgresServer, ServerUnavailable
from dibs_conformance.servers.processes import LOOPBACK, Server

SESSIONS: Final = 3
#: What a client may ask before it says hello: encryption (no), or to cancel something (not done here).
ENCRYPTION: Final = (80877103, 80877104)
CANCEL: Final = 80877102
TOLD: Final = ("server_version", "server_encoding", "client_encoding", "DateStyle", "integer_datetimes")

Message = tuple[bytes, bytes]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def message(reader: asyncio.StreamReader) -> Message:
    """Read one message: its kind, and all of its bytes."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:5]) - 4)


def packed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


class Pooler:
    """Sessions for everybody in turn; `handed_out` counts the transactions each had."""

    def __init__(self) -> None:
        self.handed_out = [0] * SESSIONS
        self._idle: asyncio.Queue[tuple[int, Streams]] = asyncio.Queue()
        self._greeting = b""
        self._keep: list[Session] = []
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def connect(self, server: PostgresServer) -> None:
        """Open the sessions. The driver's own library says hello and proves the password."""
        for number in range(SESSIONS):
            session = await asyncio.to_thread(PGconn.connect, server.url.encode())
            assert session.status == ConnStatus.OK, session.error_message
            self._keep.append(session)
            wire = socket.socket(fileno=os.dup(session.socket))
            wire.setblocking(False)  # noqa: FBT003 - as it is called
            self._idle.put_nowait((number, await asyncio.open_connection(sock=wire)))
        told = {name: self._keep[0].parameter_status(name.encode()) or b"" for name in TOLD}
        self._greeting = packed(b"R", bytes(4))
        self._greeting += b"".join(
            packed(b"S", name.encode() + b"\0" + value + b"\0") for name, value in told.items()
        )
        # A pid of its own making, as every pooler tells.
        self._greeting += packed(b"K", struct.pack("!ii", 1, 1)) + packed(b"Z", b"I")

    async def close(self) -> None:
        for writer in self._clients.values():
            writer.close()
        if self._clients:
            await asyncio.wait(self._clients)
        while not self._idle.empty():
            self._idle.get_nowait()[1][1].close()
        # A transport is closed in the next turn of the loop: one that is left then warns, in some later test.
        await asyncio.sleep(0)
        for session in self._keep:
            session.finish()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self._clients[task] = writer
        task.add_done_callback(self._clients.pop)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it leaves."""
        try:
            if await self._greet(reader, writer):
                while True:
                    first = await message(reader)
                    if first[0] == b"X":
                        break
                    await self._transaction(first, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            size = int.from_bytes(await reader.readexactly(4))
            code = int.from_bytes((await reader.readexactly(size - 4))[:4])
            if code == CANCEL:
                return False
            writer.write(b"N" if code in ENCRYPTION else self._greeting)
            if code not in ENCRYPTION:
                return True

    async def _transaction(
        self, first: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number, (answers, asks) = await self._idle.get()
        self.handed_out[number] += 1
        asks.write(first[1])
        on = asyncio.create_task(self._pass_on(reader, asks))
        back = asyncio.create_task(self._answer(answers, writer))
        await asyncio.wait([on, back], return_when=asyncio.FIRST_COMPLETED)
        if back.done():
            self._idle.put_nowait((number, (answers, asks)))
        else:
            # The client left amid a transaction: the session goes with it.
            asks.close()
        for task in (on, back):
            task.cancel()
        await asyncio.gather(on, back, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, asks: asyncio.StreamWriter) -> None:
        while True:
            kind, whole = await message(reader)
            if kind == b"X":
                return
            asks.write(whole)

    async def _answer(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind, whole = await message(answers)
            if kind == b"A":
                continue  # a notification: nobody knows for whom
            writer.write(whole)
            if kind == b"Z" and whole[5:] == b"I":
                return


@asynccontextmanager
async def pooled(server: PostgresServer) -> AsyncIterator[tuple[str, Pooler]]:
    """Yield the URL of a pooler before a server, and the pooler."""
    pooler = Pooler()
    await pooler.connect(server)
    listening = await asyncio.start_server(pooler.begin, LOOPBACK, 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield url_at(server, port), pooler
    finally:
        listening.close()
        await pooler.close()


def url_at(server: PostgresServer, port: int) -> str:
    return f"postgresql://{server.user}:{server.password}@{LOOPBACK}:{port}/postgres"


class PgBouncer(Server):
    """A pgbouncer before a server; it refuses to run as root, and runs as whoever the server runs as."""

    def __init__(
        self, server: PostgresServer, mode: str = "transaction", *, sessions: int = SESSIONS, **settings: str
    ) -> None:
        super().__init__()
        found = os.environ.get("DIBS_PGBOUNCER") or shutil.which("pgbouncer", path=_PLACES)
        if found is None:
            self.remove()
            raise ServerUnavailable("no pgbouncer: not in DIBS_PGBOUNCER and not on PATH")
        self._program = found
        self._server = server
        self._settings = {"pool_mode": mode, "default_pool_size": str(sessions), **settings}

    @property
    def url(self) -> str:
        return url_at(self._server, self.port)

    def popen_options(self) -> dict[str, Any]:
        return self._server.popen_options()

    def command(self) -> Sequence[str]:
        conf = self.folder / "pgbouncer.ini"
        there = f"host={LOOPBACK} port={self._server.port} user={self._server.user}"
        conf.write_text(
            f"[databases]\npostgres = {there} password={self._server.password}\n"
            f"[pgbouncer]\nlisten_addr = {LOOPBACK}\nlisten_port = {self.port}\n"
            f"unix_socket_dir = {self.folder}\nauth_type = any\nlogfile =\n"
            + "".join(f"{name} = {value}\n" for name, value in self._settings.items())
        )
        if user := self.popen_options().get("user"):
            for path in (self.folder, conf):
                os.chown(path, user, -1)
        prefix = () if user or os.geteuid() else ("unshare", "--user", "--map-user=1000", "--map-group=1000")
        return [*prefix, self._program, "--quiet", str(conf)]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), 1):
                return True
        except OSError:
            return False

    @property
    def version(self) -> str:
        told = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True)
        return told.stdout.split("\n")[0]


#: Debian puts it beside other daemons, which is not on everybody's PATH.
_PLACES: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"
