"""VACUUM of the table `live`, which holds the waiting and active jobs, after many claims.

A claim leaves a dead index entry at the front of the claim order, and each later claim steps over these
entries until a vacuum removes them. Autovacuum of Postgres runs once a minute. In a minute a million entries
can pile up, which makes a claim 35 ms slower. With one vacuum per 50,000 claimed jobs a claim loses at most
1 ms.

A vacuum also frees the space of jobs that have ended. It reads all index entries, so it costs little for a
small table. With 20,000 waiting jobs and a vacuum per 3,333 claims, the table with its indexes grows to 1.26
times its size at the start, and with one per 10,000 to 1.7.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import psycopg

from dibs.errors import DibsError
from dibs.model.error_text import summarize_exception
from dibs.storage.postgres.network.connections import PooledConnection, has_unread_data
from dibs.storage.postgres.network.server import PostgresDatabase

log: Final = logging.getLogger("dibs.storage.postgres")

#: Jobs that a storage claims between two vacuums: the fewest, and the most.
FEWEST_CLAIMS: Final = 3_000
MOST_CLAIMS: Final = 50_000
#: A table of fewer rows is vacuumed after a sixth of them was claimed, a larger one after a quarter, because
#: its vacuum costs more.
SMALL: Final = 60_000
#: The factor by which the assumed number of rows shrinks at most from one vacuum to the next. A table that
#: shrinks keeps the pages of its indexes, so the next vacuum takes about as long.
SHRINKING: Final = 0.9
#: Seconds after a vacuum for which its connection stays open. A new one costs the server as much as a vacuum
#: of a small table.
IDLE_SECONDS: Final = 10.0


def claims_per_vacuum(rows: float) -> int:
    """Return the claims between two vacuums of a table with `rows` rows: a sixth or a quarter, in limits."""
    share = 6 if rows < SMALL else 4
    return min(MOST_CLAIMS, max(FEWEST_CLAIMS, int(rows) // share))


class Vacuum:
    """A count of the jobs that one storage claims, and the task that vacuums `live` on another connection."""

    def __init__(self, server: PostgresDatabase) -> None:
        self._server = server
        self._claimed = 0
        self._limit = FEWEST_CLAIMS
        #: The rows of the table by which `_limit` was set; -1 if they are unknown.
        self._rows = -1.0
        self._task: asyncio.Task[None] | None = None
        #: The connection of the last vacuum, and the timer that closes it.
        self._connection: PooledConnection | None = None
        self._timer: asyncio.TimerHandle | None = None

    def count(self, claimed: int) -> None:
        """Add claimed jobs to the count. Start a vacuum in the background when there are enough."""
        self._claimed += claimed
        if self._claimed >= self._limit and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run_if_due(), name="dibs-vacuum")

    async def _run_if_due(self) -> None:
        """Vacuum the table, unless it has become so large that a vacuum is not due yet."""
        try:
            await self._update_limit()
            if self._claimed >= self._limit:
                self._claimed = 0
                await self.run()
                await self._update_limit(vacuumed=True)
        except DibsError as error:
            log.info("%s: could not read the size of a table: %s", self._server.url, error)

    async def _update_limit(self, *, vacuumed: bool = False) -> None:
        """Set the limit by the size of the table. The rows that are dead after a vacuum count, too.

        While another session holds an old snapshot, no vacuum removes them, but each one reads them.
        """
        params = {"schema": self._server.queries.plain}
        found = await self._server.fetch(self._server.queries["live_rows"], params, writes=False)
        rows, dead = found[0] if found else (-1.0, 0.0)
        self._rows = max(rows + (dead if vacuumed else 0), self._rows * SHRINKING)
        self._limit = claims_per_vacuum(self._rows)

    async def run(self) -> None:
        """Vacuum the table, or log why the server refused it."""
        try:
            connection = self._take_connection() or await self._server.connect()
            try:
                await connection.execute(self._server.queries["vacuum"], {})
            except BaseException:
                connection.pgconn.finish()
                raise
        except (psycopg.Error, DibsError) as error:
            # A role that does not own the table may not vacuum it; autovacuum still does.
            log.info(
                "%s: could not vacuum, autovacuum will: %s", self._server.url, summarize_exception(error)
            )
        else:
            self._connection = connection
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_connection)

    def _take_connection(self) -> PooledConnection | None:
        """Return the connection of the last vacuum if it is open and usable; else None."""
        connection, self._connection = self._connection, None
        if self._timer is not None:
            self._timer.cancel()
        if connection is None or connection.closed:
            return None
        if has_unread_data(connection.fileno()):
            # The server is closing it.
            connection.pgconn.finish()
            return None
        return connection

    def _close_connection(self) -> None:
        if (connection := self._take_connection()) is not None:
            connection.pgconn.finish()

    async def close(self) -> None:
        """Cancel a running vacuum, and wait until it has stopped."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._close_connection()
