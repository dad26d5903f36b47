"""Tasks for the tests of flows: a handler must be at the top of a module."""

from __future__ import annotations

import os
from typing import Any, Final

from dibs import Dibs, PermanentError, current_job

#: The calls that ran, by the text with which they were marked: a test marks its own calls.
RAN: Final[dict[str, list[Any]]] = {}
#: Marks of calls that fail. A test removes a mark, and the next run completes.
FAILING: Final[set[str]] = set()


def load(mark: str, number: int) -> int:
    """Return the number doubled, or fail if the mark is in FAILING."""
    RAN.setdefault(mark, []).append(number)
    if f"{mark} {number}" in FAILING:
        raise PermanentError(f"no {number}")
    return number * 2


async def summarise(parts: list[int], scale: int = 1) -> int:
    return sum(parts) * scale


async def describe(total: int, *, labels: dict[str, int]) -> str:
    return f"{total} {sorted(labels.items())}"


async def note(mark: str, text: str) -> str:
    RAN.setdefault(mark, []).append(text)
    return text


def fetch(url: str) -> bytes:
    return url.encode()


def parse(body: bytes, *, upper: bool = False) -> str:
    text = body.decode()
    return text.upper() if upper else text


async def store(text: str, place: str = "here") -> dict[str, str]:
    return {place: text}


async def add_up(first: int = 0, second: int = 0) -> int:
    return first + second


async def long(size: int) -> str:
    return "x" * size


async def approve(question: str) -> None:
    """Wait for a person: the job ends by `queue.finish`."""
    current_job().hand_off()


class Tasks:
    """An app with flows and its tasks, whose queues have a prefix of the test."""

    def __init__(self, url: str, mark: str = "") -> None:
        self.app = Dibs(url, flows=True)
        prefix = mark or os.urandom(6).hex()

        def name(task: str) -> str:
            return f"{prefix}.{task}"

        self.mark = prefix
        self.load = self.app.task(queue=name("load"), max_retries=0)(load)
        self.summarise = self.app.task(queue=name("summarise"))(summarise)
        self.describe = self.app.task(queue=name("describe"))(describe)
        self.note = self.app.task(queue=name("note"))(note)
        self.fetch = self.app.task(queue=name("fetch"))(fetch)
        self.parse = self.app.task(queue=name("parse"))(parse)
        self.store = self.app.task(queue=name("store"))(store)
        self.add_up = self.app.task(queue=name("add_up"))(add_up)
        self.long = self.app.task(queue=name("long"))(long)
        self.approve = self.app.task(queue=name("approve"))(approve)

    def ran(self, mark: str = "") -> list[Any]:
        """Return the calls with this mark that ran, in the order of their starts."""
        return RAN.get(mark or self.mark, [])
