"""The app that runs the jobs of a stored place. Its handlers record their calls."""

from __future__ import annotations

from typing import Final

from dibs import Dibs, Failure
from tests.storage.stored_places.story import JOBS, LIMITED, ODD, PAUSED, TICKS

app: Final = Dibs()
#: The queue and the argument of each call, in order.
calls: Final[list[tuple[str, str]]] = []
#: The id and the message of each failure that the failure handler got.
failures: Final[list[tuple[str, str]]] = []


@app.task(queue=JOBS)
def job(id: str) -> None:
    calls.append((JOBS, id))


@job.on_failure
def report(failure: Failure) -> None:
    failures.append((failure.id, failure.error.message))


@app.task(queue=LIMITED)
def limited(id: str) -> None:
    calls.append((LIMITED, id))


@app.task(queue=ODD)
def odd(id: str) -> None:
    calls.append((ODD, id))


@app.task(queue=PAUSED)
def paused(id: str) -> None:
    calls.append((PAUSED, id))


@app.task(queue=TICKS, every="1h")
def tick() -> None:
    calls.append((TICKS, ""))
