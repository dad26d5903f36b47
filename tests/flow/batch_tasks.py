"""Tasks for the tests of batches, with handlers that add members."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Final

from dibs import BatchClosed, Dibs, current_job
from tests.flow.tasks import RAN, Tasks

#: The app of each test, by the mark that the test passes to its jobs. Handlers that add members use it.
APPS: Final[dict[str, Dibs]] = {}
#: The gates that the members of `hold` wait for, by the mark of the test.
GATES: Final[defaultdict[str, asyncio.Event]] = defaultdict(asyncio.Event)


async def grow(mark: str, depth: int) -> int:
    """Add two members of the next depth, up to depth 0, to the batch of this member."""
    RAN.setdefault(mark, []).append(depth)
    if depth == 0:
        return 0
    batch = APPS[mark].get_batch()
    task = APPS[mark].get_task(current_job().queue)
    return await batch.enqueue_many(task.bind(mark, depth - 1) for _ in range(2))


def grow_blocking(mark: str, depth: int) -> int:
    """Do the same as `grow` in a `def` handler, which runs on a thread."""
    RAN.setdefault(mark, []).append(depth)
    batch = APPS[mark].sync.get_batch()
    task = APPS[mark].get_task(current_job().queue)
    return batch.enqueue_many(task.bind(mark, depth - 1) for _ in range(2)) if depth else 0


async def hold(mark: str) -> None:
    """Run until the test opens the gate of this mark."""
    RAN.setdefault(mark, []).append("held")
    await GATES[mark].wait()


async def intrude(mark: str, id: str) -> str:
    """Add a member to a batch from a job that is no member."""
    try:
        await APPS[mark].get_batch(id).enqueue_many([APPS[mark].get_task(f"{mark}.hold").bind(mark)])
    except BatchClosed as error:
        return str(error)
    return "added"


async def read_summary(mark: str) -> dict[str, Any]:
    """Return the attributes that a batch gives to a callback."""
    job = current_job()
    RAN.setdefault(mark, []).append((APPS[mark].get_batch().id, job.attributes["dibs.summary"]))
    return job.attributes


class BatchTasks(Tasks):
    """An app with flows and its tasks."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        APPS[self.mark] = self.app
        self.grow = self.app.task(queue=f"{self.mark}.grow")(grow)
        self.grow_blocking = self.app.task(queue=f"{self.mark}.grow_blocking")(grow_blocking)
        self.hold = self.app.task(queue=f"{self.mark}.hold")(hold)
        self.intrude = self.app.task(queue=f"{self.mark}.intrude")(intrude)
        self.read_summary = self.app.task(queue=f"{self.mark}.read_summary")(read_summary)
