"""Two connection poolers for tests: pgbouncer, if it is installed, and `Pooler`, which is written here.

`Pooler` works in transaction mode and gives each transaction another session, which pgbouncer does only
sometimes. It forwards whole messages. The first message of a transaction takes a session, and the session is
free again when the server reports that it is idle. A client gets neither the process id of a session nor its
notifications.
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
#: The codes of requests that a client may send in place of the startup message. The pooler refuses encryption
#: (TLS and GSS), and ignores the cancellation of a statement.
ENCRYPTION: Final = (80877103, 80877104)
CANCEL: Final = 80877102
#: The parameters of the server that a client gets at its start.
PARAMETERS: Final = ("server_version", "server_encoding", "client_encoding", "DateStyle", "integer_datetimes")

Message = tuple[bytes, bytes]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def message(reader: asyncio.StreamReader) -> Message:
    """Read one message, and return its kind and all of its bytes."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:5]) - 4)


def packed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


class Pooler:
    """A pooler with SESSIONS sessions. `handed_out` is the number of transactions of each session."""

    def __init__(self) -> None:
        self.handed_out = [0] * SESSIONS
        self._idle: asyncio.Queue[tuple[int, Streams]] = asyncio.Queue()
        self._greeting = b""
        self._keep: list[Session] = []
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def connect(self, server: PostgresServer) -> None:
        """Open the sessions. libpq authenticates them, and then the pooler reads and writes their sockets."""
        for number in range(SESSIONS):
            session = await asyncio.to_thread(PGconn.connect, server.url.encode())
            assert session.status == ConnStatus.OK, session.error_message
            self._keep.append(session)
            wire = socket.socket(fileno=os.dup(session.socket))
            wire.setblocking(False)  # noqa: FBT003 - as it is called
            self._idle.put_nowait((number, await asyncio.open_connection(sock=wire)))
        values = {name: self._keep[0].parameter_status(name.encode()) or b"" for name in PARAMETERS}
        self._greeting = packed(b"R", bytes(4))
        self._greeting += b"".join(
            packed(b"S", name.encode() + b"\0" + value + b"\0") for name, value in values.items()
        )
        # As with every pooler, the process id that a client gets is that of no session.
        self._greeting += packed(b"K", struct.pack("!ii", 1, 1)) + packed(b"Z", b"I")

    async def close(self) -> None:
        for writer in self._clients.values():
            writer.close()
        if self._clients:
            await asyncio.wait(self._clients)
        while not self._idle.empty():
            self._idle.get_nowait()[1][1].close()
        # A transport closes in the next iteration of the loop; else a later test gets its ResourceWarning.
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
        number, (from_server, to_server) = await self._idle.get()
        self.handed_out[number] += 1
        to_server.write(first[1])
        requests = asyncio.create_task(self._forward_requests(reader, to_server))
        replies = asyncio.create_task(self._forward_replies(from_server, writer))
        await asyncio.wait([requests, replies], return_when=asyncio.FIRST_COMPLETED)
        if replies.done():
            self._idle.put_nowait((number, (from_server, to_server)))
        else:
            # The client disconnected during a transaction, so the session ends, too.
            to_server.close()
        for task in (requests, replies):
            task.cancel()
        await asyncio.gather(requests, replies, return_exceptions=True)

    async def _forward_requests(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while True:
            kind, whole = await message(reader)
            if kind == b"X":
                return
            to_server.write(whole)

    async def _forward_replies(self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind, whole = await message(from_server)
            if kind == b"A":
                continue  # Notifications belong to a session, and a client has none.
            writer.write(whole)
            if kind == b"Z" and whole[5:] == b"I":
                return


@asynccontextmanager
async def pooled(server: PostgresServer) -> AsyncIterator[tuple[str, Pooler]]:
    """Start a `Pooler` in front of a server. Yield its URL and the pooler."""
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
    """A pgbouncer in front of a server. It runs as the user of the server, as it refuses to run as root."""

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
        address = f"host={LOOPBACK} port={self._server.port} user={self._server.user}"
        conf.write_text(
            f"[databases]\npostgres = {address} password={self._server.password}\n"
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
        printed = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True)
        return printed.stdout.split("\n")[0]


#: The folders in which pgbouncer is searched. Debian installs it in /usr/sbin, which PATH may not contain.
_PLACES: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"
