"""What may stand around each enqueue and each run: tracing, tests. Where nothing does, nothing is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)

from dibs.client.calls.current_job import CurrentJob
from dibs.model.requests import EnqueueRequest

#: Called with a queue and what is about to be enqueued there; it yields what is sent in its place.
EnqueueMiddleware = Callable[[str, Sequence[EnqueueRequest]], AbstractAsyncContextManager[Sequence[EnqueueRequest]]]
#: Called where a handler is about to be called, on its task or thread, with the job it is called for.
RunMiddleware = Callable[[CurrentJob], AbstractContextManager[object]]


def compose_enqueue(outer: EnqueueMiddleware, inner: EnqueueMiddleware | None) -> EnqueueMiddleware:
    """Return the two as one."""
    if inner is None:
        return outer

    @asynccontextmanager
    async def both(queue: str, requests: Sequence[EnqueueRequest]) -> AsyncIterator[Sequence[EnqueueRequest]]:
        async with outer(queue, requests) as passed, inner(queue, passed) as sent:
            yield sent

    return both


def compose_run(outer: RunMiddleware, inner: RunMiddleware | None) -> RunMiddleware:
    """Return the two as one."""
    if inner is None:
        return outer

    @contextmanager
    def both(job: CurrentJob) -> Iterator[None]:
        with outer(job), inner(job):
            yield

    return both
