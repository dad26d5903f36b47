"""VACUUM of the table `live`, which holds the waiting and active jobs, after many claims.

A claim leaves a dead index entry at the front of the claim order, and each later claim steps over these
entries until a vacuum removes them. Autovacuum of Postgres runs once a minute. In a minute a million entries
can pile up, which makes a claim 35 ms slower. With one vacuum per 50,000 claimed jobs a claim loses at most
1 ms.

A vacuum also frees the space of jobs that have ended. It reads all index entries, so it costs little for a
small table: with 20,000 waiting jobs and a vacuum per 10,000 claims instead of 50,000, the table keeps 12 MB
instead of 25 to 33, and the server uses no more CPU time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import psycopg

from dibs.errors import DibsError
from dibs.storage.postgres.network.server import PostgresDatabase

log: Final = logging.getLogger("dibs.storage.postgres")

#: Jobs that a storage claims between two vacuums: the fewest, for a small table, and the most.
FEWEST_CLAIMS: Final = 10_000
MOST_CLAIMS: Final = 50_000
#: The factor by which the assumed number of rows shrinks at most from one vacuum to the next. A table that
#: shrinks keeps the pages of its indexes, so the next vacuum takes about as long.
SHRINKING: Final = 0.9


def claims_per_vacuum(rows: float) -> int:
    """Return the claims between two vacuums of a table with `rows` rows: a quarter of its rows, in limits."""
    return min(MOST_CLAIMS, max(FEWEST_CLAIMS, int(rows) // 4))


class Vacuum:
    """A count of the jobs that one storage claims, and the task that vacuums `live` on another connection."""

    def __init__(self, server: PostgresDatabase) -> None:
        self._server = server
        self._claimed = 0
        self._limit = FEWEST_CLAIMS
        #: The rows of the table by which `_limit` was set; -1 if they are unknown.
        self._rows = -1.0
        self._task: asyncio.Task[None] | None = None

    def count(self, claimed: int) -> None:
        """Add claimed jobs to the count. Start a vacuum in the background when there are enough."""
        self._claimed += claimed
        if self._claimed >= self._limit and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run_if_due(), name="dibs-vacuum")

    async def _run_if_due(self) -> None:
        """Vacuum the table, unless it has become so large that a vacuum is not due yet."""
        try:
            await self._update_limit()
        except DibsError as error:
            log.info("%s: could not read the size of a table: %s", self._server.url, error)
        if self._claimed >= self._limit:
            self._claimed = 0
            await self.run()

    async def _update_limit(self) -> None:
        params = {"schema": self._server.queries.plain}
        rows = await self._server.fetch(self._server.queries["live_rows"], params, writes=False)
        self._rows = max(rows[0][0] if rows else -1.0, self._rows * SHRINKING)
        self._limit = claims_per_vacuum(self._rows)

    async def run(self) -> None:
        """Vacuum the table, or log why the server refused it."""
        try:
            connection = await self._server.connect()
            async with connection:
                await connection.execute(self._server.queries["vacuum"], {})
        except (psycopg.Error, DibsError) as error:
            # A role that does not own the table may not vacuum it; autovacuum still does.
            log.info("%s: could not vacuum, autovacuum will: %s", self._server.url, error)

    async def close(self) -> None:
        """Cancel a running vacuum, and wait until it has stopped."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
