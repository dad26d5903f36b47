"""The task that raises the starts of lines, from which claims read, after many claims.

A claimed job leaves a dead index entry at the front of the claim order. A vacuum removes it only when no
session has an older snapshot: a report, pg_dump and a standby with feedback keep one for minutes or hours. A
claim that begins at the start of its line steps over none of them. functions/lines.sql has the rules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from dibs.errors import DibsError
from dibs.storage.postgres.network.server import PostgresDatabase

log: Final = logging.getLogger("dibs.storage.postgres")

#: Jobs that this process claims in a queue between two raises: 4,000, or 500 if the last raise was a second
#: ago. A raise costs as much as three claims of one job; a claim steps over 4,000 entries in 0.6 ms.
MANY_CLAIMS: Final = 4_000
FEW_CLAIMS: Final = 500
#: Rows of active jobs that the claims of this process step over in a queue between two raises. A row takes
#: 2,300 instructions, and a claim of one job without any takes 900,000: with 400 active jobs it takes twice
#: as many.
MANY_STEPS: Final = 4_000
SECONDS: Final = 1.0
#: Seconds between the looks for the transactions that a raise waits for. After the last one, it notes those
#: that are left, and rises without them.
PAUSES: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class LineStarts:
    """A count of the jobs that one storage claims in each queue, and the task that raises the starts."""

    def __init__(self, server: PostgresDatabase, *, manual: bool) -> None:
        self._server = server
        self._now = 0 if manual else None
        self._claimed: Counter[str] = Counter()
        self._stepped: Counter[str] = Counter()
        self._raised_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def count(self, queue: str, claimed: int, active: int) -> None:
        """Count a claim in a queue. Raise starts in the background once claims have read enough rows in vain.

        `active` is the number of runs that this process had before the claim. Those that began since the last
        raise are in front of the line.
        """
        if not claimed:
            return
        self._stepped[queue] += min(self._claimed[queue], active)
        self._claimed[queue] += claimed
        if self._task is not None and not self._task.done():
            return
        rested = time.monotonic() - self._raised_at > SECONDS
        if self._stepped[queue] >= MANY_STEPS or self._claimed[queue] >= (
            FEW_CLAIMS if rested else MANY_CLAIMS
        ):
            queues = {queue, *(name for name, jobs in self._claimed.items() if jobs >= FEW_CLAIMS)}
            self._task = asyncio.create_task(self._run(sorted(queues)), name="dibs-line-starts")

    async def _run(self, queues: Sequence[str]) -> None:
        for queue in queues:
            del self._claimed[queue], self._stepped[queue]
        self._raised_at = time.monotonic()
        try:
            await self.run(queues)
        except DibsError as error:
            log.info("%s: could not raise the starts of lines: %s", self._server.url, error)

    async def run(self, queues: Sequence[str]) -> None:
        """Raise the starts of all lines of some queues."""
        names = list(queues)
        proposals: list[int] | None = None
        seen: list[str] | None = None
        for pause in PAUSES:
            if proposals is None:
                proposals = await self._fetch("propose_starts", {"queues": names, "now": self._now})
            if proposals == []:
                return
            if proposals is not None:
                patient = pause != PAUSES[-1]
                params = {"queues": names, "proposals": proposals, "seen": seen, "patient": patient}
                # If `seen` is empty, all writers have ended, and only the lock of the table was missing.
                left = await self._fetch("raise_starts", params)
                if left == []:
                    return
                seen = seen if left is None and seen is not None else left or seen
            # Not asyncio.sleep(): close() ends the pause, and lets a statement in flight end by itself.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
                return

    async def _fetch(self, name: str, params: dict[str, Any]) -> Any:
        ((value,),) = await self._server.fetch(self._server.queries[name], params, writes=True)
        return value

    async def close(self) -> None:
        """End a running raise, and wait until it has stopped. Cancel it if its statement has no answer."""
        self._closing.set()
        if self._task is None:
            return
        _, running = await asyncio.wait([self._task], timeout=SECONDS)
        if running:
            self._task.cancel()
            await asyncio.wait([self._task])
