"""Waits until dibs has settled all jobs."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from dibs import Dibs
from dibs.model.results import Counts


class DibsJobs:
    """A client of dibs that is connected before the drain, so that connecting takes no time after it."""

    def __init__(self, url: str, queues: list[str]) -> None:
        self._runner = asyncio.Runner()
        self._app = Dibs(url)
        self._queues = queues

    def left(self) -> bool:
        """Return whether a job is waiting or active."""
        found = self._runner.run(self._counts())
        return any(counts.waiting + counts.active for counts in found.values())

    async def _counts(self) -> dict[str, Counts]:
        return await self._app.storage.counts(self._queues)

    def __enter__(self) -> Self:
        self._runner.run(self._app.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._app.close())
        self._runner.close()
