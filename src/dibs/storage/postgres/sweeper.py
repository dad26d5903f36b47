"""Sweeping up behind the jobs that were claimed.

A claimed job leaves a dead entry at the front of the line, and every later claim steps over it until a
vacuum has been there. Autovacuum looks once a minute: time for a million of them, 35 ms a claim. So whoever
claims much sweeps now and then: with one sweep for 50,000 jobs a claim steps over 1 ms worth of them at most.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import psycopg

from dibs.errors import DibsError
from dibs.storage.postgres.network.server import Server

log: Final = logging.getLogger("dibs.storage.postgres")

#: How many claimed jobs a storage leaves behind before it sweeps.
ENOUGH: Final = 50_000


class Sweeper:
    """Counts what one storage claimed, and vacuums `live` on a connection of its own, in nobody's way."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._claimed = 0
        self._task: asyncio.Task[None] | None = None

    def count(self, claimed: int) -> None:
        """Take note of a claim; begin to sweep if it is time."""
        self._claimed += claimed
        if self._claimed >= ENOUGH and (self._task is None or self._task.done()):
            self._claimed = 0
            self._task = asyncio.create_task(self._sweep(), name="dibs-sweep")

    async def _sweep(self) -> None:
        try:
            connection = await self._server.connect()
            async with connection:
                await connection.execute(self._server.queries["sweep"], {})
        except (psycopg.Error, DibsError) as error:
            # Autovacuum comes anyway; whoever does not own the table may not.
            log.info("%s: not swept: %s", self._server.url, error)

    async def close(self) -> None:
        """Stop sweeping."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
