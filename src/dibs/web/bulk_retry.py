"""Retries of many failed jobs: a selection, or all that match a group, in steps that the browser repeats.

A step reads and retries a bounded number of jobs, and its answer carries the cursor of the next step. So the
server keeps no state between the steps, and any process can serve the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

from attrs import frozen

from dibs.storage.protocol import Storage
from dibs.web.reading.errors import group_key
from dibs.web.reading.source import Budget, Source

#: Bounds of a step: failed jobs that it reads, and seconds.
STEP_JOBS: Final = 2_000
STEP_SECONDS: Final = 1.0
#: Failed jobs that one call reads and retries.
PAGE_SIZE: Final = 100
#: Most jobs without the answer "queued" that the page lists.
MAX_LISTED: Final = 100
#: A lease id that no storage grants. Its renewal changes no state, and the reply has the storage's time.
UNUSED_LEASE: Final = "0" * 32


@frozen
class RetryProgress:
    """The state of a bulk retry after a step."""

    queue: str
    group: str
    #: Only jobs that had failed by this time of the storage are retried, so that a retry ends although jobs
    #: fail again meanwhile.
    before: int
    #: Number of failed jobs that all steps have read, and the number that the queue had at the beginning.
    read: int
    total: int
    #: Answer of the storage -> number of jobs, over all steps.
    answers: Mapping[str, int]
    #: Queue, id and answer of the jobs of this step that were not enqueued.
    others: tuple[tuple[str, str, str], ...]
    #: Cursor of the next step; "" after the last one.
    after: str


async def storage_time(storage: Storage, queue: str) -> int:
    """Return the time of the storage in ms since the epoch."""
    return (await storage.renew([queue], UNUSED_LEASE, 1))[queue].now


async def count_matching(source: Source, queue: str, group: str) -> tuple[int, int, int]:
    """Return the number of failed jobs that match, of those read, and of all failed jobs of the queue."""
    storage = await source.storage()
    total = (await storage.counts([queue]))[queue].failed
    budget = Budget(STEP_JOBS * 5, STEP_SECONDS * 2)
    matching, after = 0, None
    while not budget.is_spent:
        page = await budget.list(storage, queue, "failed", after=after, limit=PAGE_SIZE)
        matching += sum(
            slot.outcome is not None and (not group or group == group_key(source, queue, slot.outcome.error))
            for _, slot in page.items
        )
        if (after := page.after) is None:
            break
    return matching, budget.read, total


async def retry_step(source: Source, state: RetryProgress) -> RetryProgress:
    """Retry the next failed jobs that match, and return the new state."""
    storage = await source.storage()
    budget = Budget(STEP_JOBS, STEP_SECONDS)
    answers, others = Counter(state.answers), []
    after: str | None = state.after or None
    while True:
        page = await budget.list(storage, state.queue, "failed", after=after, limit=PAGE_SIZE)
        ids = [
            id
            for id, slot in page.items
            if slot.outcome is not None
            and slot.outcome.ended_at <= state.before
            and (not state.group or state.group == group_key(source, state.queue, slot.outcome.error))
        ]
        found = await storage.retry_failed(state.queue, ids) if ids else ()
        answers.update(found)
        others += [
            (state.queue, id, answer) for id, answer in zip(ids, found, strict=True) if answer != "queued"
        ]
        after = page.after
        if after is None or budget.is_spent:
            break
    return RetryProgress(
        queue=state.queue,
        group=state.group,
        before=state.before,
        read=state.read + budget.read,
        total=max(state.total, state.read + budget.read),
        answers=dict(answers),
        others=tuple(others[:MAX_LISTED]),
        after=after or "",
    )


async def retry_selected(source: Source, selected: Iterable[str]) -> RetryProgress:
    """Retry the selected jobs, each written as `queue/id` with both parts percent-encoded."""
    storage = await source.storage()
    by_queue: dict[str, list[str]] = {}
    for text in selected:
        queue, slash, id = text.partition("/")
        if slash:
            by_queue.setdefault(unquote(queue), []).append(unquote(id))
    answers: Counter[str] = Counter()
    others: list[tuple[str, str, str]] = []
    for queue, ids in by_queue.items():
        found = await storage.retry_failed(queue, ids)
        answers.update(found)
        others += [(queue, id, answer) for id, answer in zip(ids, found, strict=True) if answer != "queued"]
    count = sum(map(len, by_queue.values()))
    only = next(iter(by_queue)) if len(by_queue) == 1 else ""
    return RetryProgress(only, "", 0, count, count, dict(answers), tuple(others[:MAX_LISTED]), "")
