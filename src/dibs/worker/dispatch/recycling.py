"""When a worker process is recycled: it claims no more, ends its runs, and another process replaces it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from attrs import define, field

from dibs.worker import messages
from dibs.worker.dispatch.in_flight import InFlightRuns
from dibs.worker.execution.process_limits import (
    ProcessLimits,
    count_descriptors,
    memory_of,
    most_descriptors,
    next_descriptor,
)

logger = logging.getLogger("dibs.worker")

#: Seconds between two looks at the memory.
LOOK_EVERY: Final = 0.1
#: A process with fewer free file descriptors claims no jobs: their handlers could open no file or connection.
LEAST_FREE: Final = 64
#: The same, as a part of all file descriptors, for low limits.
LEAST_FREE_PART: Final = 1 / 8
#: Seconds until a process that cannot be replaced counts its file descriptors again.
COUNT_AGAIN: Final = 1.0


@define(eq=False)
class Recycling:
    """The limits of a worker process, and whether it has reached one of them.

    A worker process that has reached a limit asks its supervisor once for a replacement. A supervisor that
    runs jobs in its own process has no limits, and waits for free file descriptors.
    """

    _limits: ProcessLimits
    _in_flight: InFlightRuns
    _notify: Callable[[messages.FromWorker], None]
    #: Called when the process may claim again.
    _wake_worker: Callable[[], None]
    _replaceable: bool
    _asked: bool = field(default=False, init=False)
    _look_at: float = field(default=0.0, init=False)
    #: True from the time at which file descriptors became scarce until enough are free.
    _scarce: bool = field(default=False, init=False)

    def may_claim(self, now: float) -> bool:
        """Return whether the process is below its limits and has free file descriptors."""
        if self._asked:
            return False
        if self._in_flight.claims_left <= 0:
            self._ask(f"has made {self._limits.max_runs:,} runs, as max_runs says", planned=True)
        elif (memory := self._excess_memory(now)) is not None:
            self._ask(f"uses {memory / 1e6:,.0f} MB, more than max_memory allows")
        elif (free := self._scarce_descriptors()) is not None:
            self._pause(f"has only {free} of its {most_descriptors():,} file descriptors left")
        else:
            return True
        return False

    def _excess_memory(self, now: float) -> int | None:
        """Return the memory of this process in bytes if it is above the limit."""
        most = self._limits.max_memory
        if most is None or now < self._look_at or not self._in_flight.claimed:
            return None
        self._look_at = now + LOOK_EVERY
        memory = memory_of(os.getpid())
        return memory if memory is not None and memory > most else None

    def _scarce_descriptors(self) -> int | None:
        """Return the number of free file descriptors if there are too few for another claim."""
        most = most_descriptors()
        least = min(LEAST_FREE, int(most * LEAST_FREE_PART))
        following = next_descriptor()
        if following is not None and following < most - least and not self._scarce:
            return None
        count = count_descriptors()
        free = 0 if count is None else most - count
        return free if free < least * (1 + self._scarce) else None

    def _pause(self, reason: str) -> None:
        if self._replaceable:
            self._ask(reason)
            return
        if not self._scarce:
            self._scarce = True
            logger.warning("this process %s: it claims no jobs until some are closed", reason)
        asyncio.get_running_loop().call_later(COUNT_AGAIN, self._wake_worker)

    def _ask(self, reason: str, *, planned: bool = False) -> None:
        self._asked = True
        self._notify(messages.WorkerSpent(reason, planned))
