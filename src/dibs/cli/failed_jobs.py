"""The failed jobs of queues, for `dibs failures` and `dibs retry`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

from attrs import define, field

from dibs.cli.progress import Advance
from dibs.client.stored_queue import spread_retries
from dibs.doctor.retrying import group_retrying
from dibs.model.job import Error, Outcome
from dibs.model.results import Counts
from dibs.storage.protocol import Storage

#: Number of ids that one call of the storage reads or changes.
BATCH_SIZE: Final = 1000
#: Number of ids that a group of failures names.
MAX_EXAMPLES: Final = 3


@define
class ErrorTypeGroup:
    """The failed and the retrying jobs of one queue with the same type of error.

    The times are those of failed jobs, in ms since the epoch; None if none has failed.
    """

    error: str
    queue: str
    #: Message of the newest of these failures; without one, that of the job that came back last.
    message: str
    oldest: int | None = None
    newest: int | None = None
    failed: int = 0
    #: Jobs that wait to run again after this error; an estimate if the queue has more than were read.
    retrying: int = 0
    #: Ids of the first failures that were read, at most MAX_EXAMPLES.
    ids: list[str] = field(factory=list)

    def add(self, id: str, outcome: Outcome) -> None:
        self.failed += 1
        at = outcome.ended_at
        self.oldest = at if self.oldest is None else min(self.oldest, at)
        if self.newest is None or at > self.newest:
            self.newest, self.message = at, _message(outcome.error)
        if len(self.ids) < MAX_EXAMPLES:
            self.ids.append(id)


async def count_failed(storage: Storage, queues: Sequence[str]) -> dict[str, int]:
    """Return the number of failed jobs of each queue that has some; numbers above 10,000 may be inexact."""
    counts = await storage.counts(queues)
    return {name: found.failed for name, found in counts.items() if found.failed}


async def group_failures(
    storage: Storage, counts: Mapping[str, Counts], advance: Advance
) -> list[ErrorTypeGroup]:
    """Return the failed and retrying jobs by type of error and queue, the largest group first.

    All failed jobs are read, and up to BATCH_SIZE retrying ones of each queue.
    """
    groups: dict[tuple[str, str], ErrorTypeGroup] = {}
    done = 0
    for queue, found in counts.items():
        if not (found.failed or found.retrying):
            continue
        async for id, outcome in read_failed(storage, queue):
            error = error_type(outcome)
            group = groups.setdefault((error, queue), ErrorTypeGroup(error, queue, ""))
            group.add(id, outcome)
            done += 1
            advance(done)
        for retried in await group_retrying(storage, queue, found, BATCH_SIZE):
            message = _message(retried.error)
            group = groups.setdefault((retried.type, queue), ErrorTypeGroup(retried.type, queue, message))
            group.retrying = retried.count
            group.ids += retried.ids[: MAX_EXAMPLES - len(group.ids)]
    return sorted(
        groups.values(), key=lambda group: (-group.failed - group.retrying, group.error, group.queue)
    )


async def find_failed_ids(
    storage: Storage, queues: Iterable[str], error: str | None, advance: Advance
) -> dict[str, list[str]]:
    """Return the ids of the failed jobs of each queue; with `error` only those with this type of error.

    Read every page before the first retry, because a retry removes its id from the listing.
    """
    found: dict[str, list[str]] = {}
    done = 0
    for queue in queues:
        async for id, outcome in read_failed(storage, queue):
            if error is None or matches(error, error_type(outcome)):
                found.setdefault(queue, []).append(id)
            done += 1
            advance(done)
    return found


async def read_failed(storage: Storage, queue: str) -> AsyncIterator[tuple[str, Outcome]]:
    """Yield each failed job of a queue as its id and its outcome."""
    after: str | None = None
    while True:
        page = await storage.list(queue, "failed", after=after, limit=BATCH_SIZE)
        for id, slot in page.items:
            if slot.outcome is not None:
                yield id, slot.outcome
        if (after := page.after) is None:
            return


async def retry_all(
    storage: Storage, ids: Mapping[str, Sequence[str]], over: int, advance: Advance
) -> dict[str, dict[str, int]]:
    """Enqueue failed jobs again, and return for each queue how often the storage gave each answer.

    `over` is the time in ms over which the starts of a queue are spread.
    """
    numbers: dict[str, dict[str, int]] = {}
    done = 0
    for queue, found in ids.items():
        answers = numbers.setdefault(queue, {})
        for batch, delay in spread_retries(found, over):
            for answer in await storage.retry_failed(queue, batch, delay=delay):
                answers[answer] = answers.get(answer, 0) + 1
            done += len(batch)
            advance(done)
    return numbers


def error_type(outcome: Outcome) -> str:
    """Return the type of the error of a failed job, for example "OSError" or "httpx.ConnectError"."""
    return outcome.error.type if outcome.error else ""


def matches(wanted: str, error: str) -> bool:
    """Return whether an error has the wanted type. "ConnectError" also matches "httpx.ConnectError"."""
    return error == wanted or error.endswith(f".{wanted}")


def _message(error: Error | None) -> str:
    return error.message if error else ""
