"""Functions that act as a worker for one job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dibs import Claim, Dibs, Queue, Ticket
from dibs.client.calls.current_job import CURRENT_JOB, CurrentJob, RunEnvironment
from dibs.client.calls.handler import Handler
from dibs.client.calls.handler_registry import HandlerRegistry


@asynccontextmanager
async def claimed(queue: Queue) -> AsyncIterator[Claim]:
    """Claim one job that is due."""
    async with queue.receive(max_jobs=1, wait=0) as claims:
        yield await anext(claims)


async def enqueue_unchecked(queue: Queue, data: Any, **settings: Any) -> Ticket[Any]:
    """Enqueue without the handler, so that the data is not checked against its type hints."""
    return await Queue(queue._client, HandlerRegistry()).enqueue(data, **settings)


def arguments(app: Dibs, handler: Handler, claim: Claim) -> Any:
    """Return the arguments that a worker calls the handler with."""
    job = claim._job
    token = CURRENT_JOB.set(
        CurrentJob(RunEnvironment(app.storage, claim.queue, asyncio.get_running_loop()), job, None)
    )
    try:
        return handler.decode_arguments(job)
    finally:
        CURRENT_JOB.reset(token)
