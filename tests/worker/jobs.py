"""Handlers without decorators, jobs, and their state in the storage, for tests of workers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dibs.app import Dibs
from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.client.options.serde import JSON
from dibs.model.job import Job, JobData, NewJob, Outcome
from dibs.model.requests import EnqueueRequest
from dibs.model.retry import Immediate


def arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Decode the arguments of a job: its payload is a list."""
    return tuple(msgspec.json.decode(job.data.payload)), {}


def add(app: Dibs, queue: str, function: Callable[..., Any], **options: Any) -> None:
    """Add a handler for a queue; the default backoff is Immediate."""
    names = HandlerLimits.__struct_fields__
    limits = {"backoff": Immediate(), **{name: options.pop(name) for name in names if name in options}}
    app.handlers[queue] = Handler(
        queue=queue,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        serde=JSON,
        decode_arguments=arguments,
        limits=HandlerLimits(**limits),
        **options,
    )


def request(id: str, *values: Any, **more: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=JSON.encode(list(values)), **more)))


async def put(app: Dibs, queue: str, *requests: EnqueueRequest | str) -> None:
    """Enqueue requests; an id stands for a job without arguments."""
    await app.storage.enqueue(queue, [request(one) if isinstance(one, str) else one for one in requests])


async def outcome(app: Dibs, queue: str, id: str) -> Outcome:
    [slot] = await app.storage.get(queue, [id])
    assert slot.outcome is not None, f"{queue}/{id} has no outcome: {slot}"
    return slot.outcome


async def current(app: Dibs, queue: str, id: str) -> Job:
    [slot] = await app.storage.get(queue, [id])
    assert slot.current is not None, f"{queue}/{id} is not live: {slot}"
    return slot.current


async def wait_for_count(app: Dibs, queue: str, state: str, number: int = 1) -> None:
    """Wait until `number` jobs of a queue are in a state, such as "completed"."""
    since: Mapping[str, str] | None = None
    async with asyncio.timeout(60):
        while getattr((await app.storage.counts([queue]))[queue], state) < number:
            since = (await app.storage.wait([queue], for_="events", since=since, timeout=0.5)).since


async def event_kinds(app: Dibs, queue: str, id: str) -> list[str]:
    """Return the kinds of the events of an id, oldest first."""
    page = await app.storage.events(queue, limit=1000)
    return [event.kind for _, event in page.events if event.id == id]


def ids(number: int) -> Sequence[str]:
    return [f"job-{n:03}" for n in range(number)]
