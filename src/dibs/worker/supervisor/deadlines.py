"""Deadlines as the supervisor watches them: from outside, so that a process that hangs cannot miss them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

from dibs.worker import messages
from dibs.worker.supervisor.held_runs import HeldRun, HeldRuns
from dibs.worker.supervisor.worker_handle import WorkerHandle

#: Seconds between two looks.
LOOK: Final = 0.25
#: Seconds after a deadline by which a process has said that it noticed. One that has not does not come to
#: it: a handler holds its interpreter, or blocks its event loop.
MARGIN: Final = 1.0


class DeadlineWatch:
    """Ends processes that no longer keep the deadlines of their runs by themselves."""

    def __init__(
        self,
        holdings: HeldRuns[WorkerHandle],
        members: Collection[WorkerHandle],
        end: Callable[[WorkerHandle], None],
    ) -> None:
        self._holdings = holdings
        self._members = members
        self._end = end

    async def watch(self) -> None:
        """Look every now and then, until cancelled."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            # Who was stopped itself, or had no CPU, cannot blame others for what they did not say meanwhile.
            if now - before < LOOK + MARGIN / 2:
                self._look(now)
            else:
                await asyncio.sleep(MARGIN)
                now = time.monotonic()
            before = now

    def _look(self, now: float) -> None:
        for member in list(self._members):
            if member.expected or member.overdue or not member.can_be_ended:
                continue
            if self._hangs(member, now) or (member.leaves_at is not None and member.leaves_at <= now):
                self._end(member)

    def _hangs(self, member: WorkerHandle, now: float) -> bool:
        """Tell whether runs are over their time without a word, and mark these as overrun."""
        found = False
        for holding in self._holdings.of(member):
            if _is_over(holding, member.started[holding.run.place], now):
                holding.overran = found = True
        return found

    def late(self, member: WorkerHandle, message: messages.RunTimedOut) -> None:
        """Give a run the time to stop that its process has given it."""
        if holding := self._holdings.at(member, message.place, message.fence):
            holding.stops_by = time.monotonic() + message.seconds

    def overran(self, member: WorkerHandle, message: messages.RunOverran) -> None:
        """Remember that nothing but the end of the process will end a run."""
        if holding := self._holdings.at(member, message.place, message.fence):
            holding.overran = True


def _is_over(holding: HeldRun, started: float, now: float) -> bool:
    ends_by = holding.ends_by(started)
    return ends_by is not None and ends_by + MARGIN <= now
