"""A warning for runs that fill a process while they wait for other jobs, which it therefore cannot start."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from attrs import define, field

from dibs.worker.dispatch.fairness import Capacity
from dibs.worker.dispatch.in_flight import InFlightRuns
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")

#: Seconds between two looks at the runs of a process without free capacity.
LOOK_EVERY: Final = 1.0
#: Number of looks in a row that must find only runs that wait, before the warning. It is repeated after
#: REPEAT_AFTER further looks.
PATIENCE: Final = 5
REPEAT_AFTER: Final = 60


@define(eq=False)
class WaitingRuns:
    """The looks at the runs of one process. While it has free capacity, it takes none."""

    _capacity: Capacity
    _in_flight: InFlightRuns
    _queues: Mapping[str, QueueState]
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _found: int = field(default=0, init=False)

    def watch(self) -> None:
        """Look at the runs from now on if no further run fits into the process."""
        if self._timer is None and self._is_full:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    @property
    def _is_full(self) -> bool:
        return self._capacity.free < min(queue.size for queue in self._queues.values())

    def _look(self) -> None:
        self._timer = None
        # Started runs have a `current`, also those whose process is about to enter the handler.
        runs = [run for run in self._in_flight if hasattr(run, "current") and not run.finished]
        if not self._is_full or not runs or not all(run.current.waits for run in runs):
            self._found = 0
        else:
            if self._found % REPEAT_AFTER == PATIENCE - 1:
                self._warn(runs)
            self._found += 1
        self.watch()

    def _warn(self, runs: list[Invocation]) -> None:
        numbers = Counter(run.handler.queue for run in runs)
        parts = []
        for name, number in numbers.items():
            queue = self._queues[name]
            function = queue.handler.function
            parts.append(
                f"{name} ({function.__module__}.{function.__qualname__}): {number} runs with "
                f"{number * queue.size} units"
            )
        logger.warning(
            "all runs of this process wait for other jobs and take its capacity of %d units, so no other job "
            "starts here, also none that they wait for: %s. Serve the awaited queues by another worker "
            "(--queues), or make a flow, whose jobs start when the results that they need exist",
            self._capacity.units, "; ".join(parts), extra={"queues": [*numbers]},
        )  # fmt: skip
