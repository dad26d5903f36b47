"""Middleware around enqueues and runs, composed to one function each. Tracing and tests use it."""

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

#: Called with the name of a queue and the requests of an enqueue; yields the requests that are sent.
EnqueueMiddleware = Callable[
    [str, Sequence[EnqueueRequest]], AbstractAsyncContextManager[Sequence[EnqueueRequest]]
]
#: Called with the current job before its handler, on the same asyncio task or thread.
RunMiddleware = Callable[[CurrentJob], AbstractContextManager[object]]


def compose_enqueue(outer: EnqueueMiddleware, inner: EnqueueMiddleware | None) -> EnqueueMiddleware:
    """Return a middleware that passes the requests through `outer`, then through `inner`."""
    if inner is None:
        return outer

    @asynccontextmanager
    async def both(queue: str, requests: Sequence[EnqueueRequest]) -> AsyncIterator[Sequence[EnqueueRequest]]:
        async with outer(queue, requests) as passed, inner(queue, passed) as sent:
            yield sent

    return both


def compose_run(outer: RunMiddleware, inner: RunMiddleware | None) -> RunMiddleware:
    """Return a middleware that enters `outer` before `inner`, and leaves it after `inner`."""
    if inner is None:
        return outer

    @contextmanager
    def both(job: CurrentJob) -> Iterator[None]:
        with outer(job), inner(job):
            yield

    return both
