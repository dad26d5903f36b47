"""Periodic tasks that worker processes of a test import by name, and the death of a process at a step."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.model.events import LogEvent
from dibs.model.retry import Immediate
from dibs.storage.file.storage import FileStorage
from tests.worker.apps import wait_at_gate

#: Milliseconds between two ticks.
INTERVAL = 100

#: The application on the storage that a test names in DIBS_URL.
app = Dibs()


async def quick() -> None:
    """Return at once."""


def held() -> int:
    wait_at_gate(current_job().id)
    return os.getpid()


def add_periodic_tasks(target: Dibs, **settings: Any) -> Dibs:
    """Add both functions to an application as periodic tasks, named after the functions."""
    for function in (quick, held):
        target.task(queue=function.__name__, every=INTERVAL / 1000, backoff=Immediate(), **settings)(function)
    return target


add_periodic_tasks(app)


async def completed(target: Dibs, queue: str, number: int) -> list[LogEvent]:
    """Wait until `number` runs of a queue have completed, and return their events."""
    since = None
    async with asyncio.timeout(30):
        while True:
            page = await target.storage.events(queue, limit=1000)
            found = [event for _, event in page.events if event.kind == "completed"]
            if len(found) >= number:
                return found
            since = (await target.storage.wait([queue], for_="events", since=since, timeout=0.5)).since


def die_at(verb: str, when: str) -> None:
    """Kill this process before or after the first call of a verb of FileStorage that returns jobs."""
    for name in ("settle", "settle_and_claim") if verb == "settle" else (verb,):
        setattr(FileStorage, name, _killing(getattr(FileStorage, name), when))


def _killing(call: Callable[..., Any], when: str) -> Callable[..., Any]:
    async def killing(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await call(*args, **kwargs)
        if getattr(result, "jobs", True):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return killing
