"""Periodic tasks that processes of a test import by name, and how such a process dies at a step."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from dibs.client.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.model.events import LogEvent
from dibs.model.retry import Immediate
from dibs.storage.file.storage import FileStorage
from tests.worker.apps import meet

#: Ms between two ticks.
LENGTH = 100

#: The storage that a test names in DIBS_URL.
app = Dibs()


async def quick() -> None:
    """Done as soon as begun."""


def held() -> int:
    meet(current_job().id)
    return os.getpid()


def furnish(place: Dibs, **settings: Any) -> Dibs:
    """Give an application both as periodic tasks, named after their functions."""
    for function in (quick, held):
        place.task(queue=function.__name__, every=LENGTH / 1000, backoff=Immediate(), **settings)(function)
    return place


furnish(app)


async def completed(place: Dibs, queue: str, number: int) -> list[LogEvent]:
    """Wait until so many runs of a queue have completed, and return these."""
    since = None
    async with asyncio.timeout(30):
        while True:
            page = await place.storage.events(queue, limit=1000)
            found = [event for _, event in page.events if event.kind == "completed"]
            if len(found) >= number:
                return found
            since = (await place.storage.wait([queue], for_="events", since=since, timeout=0.5)).since


def dies(verb: str, when: str) -> None:
    """Let this process be killed before or after the first call of a verb that matters to a tick."""
    for name in ("settle", "settle_and_claim") if verb == "settle" else (verb,):
        setattr(FileStorage, name, _deadly(getattr(FileStorage, name), when))


def _deadly(call: Callable[..., Any], when: str) -> Callable[..., Any]:
    async def deadly(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await call(*args, **kwargs)
        if getattr(answer, "jobs", True):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return deadly
