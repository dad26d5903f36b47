"""The failed jobs of all queues, grouped by queue, type of error and pattern of message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappush, heapreplace
from typing import Final

from attrs import define, field, frozen

from dibs.doctor.retrying import group_retrying
from dibs.model.job import Error, Outcome
from dibs.model.results import Counts
from dibs.web.reading.errors import (
    ErrorView,
    error_view,
    group_key,
    hidden_message,
)
from dibs.web.reading.source import Budget, Source, gather, scan_failed

#: Bounds of the scan of one page: failed jobs and seconds.
MAX_SCANNED: Final = 5_000
MAX_SECONDS: Final = 1.5
#: Failed jobs that one call reads. Each comes with its payload, up to 1 MiB.
PAGE_SIZE: Final = 100
#: Failed jobs that the page of a queue groups, and most groups that it shows.
MAX_GROUPED: Final = 1_000
MAX_GROUPS: Final = 10
#: Queues of which the page reads the errors of retrying jobs.
MOST_RETRYING: Final = 20
#: Jobs of a group that the page lists.
MAX_LISTED: Final = 100


@frozen
class FailedJob:
    """A failed job in a list."""

    queue: str
    id: str
    ended_at: int
    attempts: int
    message: str


@frozen
class FailureGroup:
    """Failed jobs of one queue with the same type of error and the same pattern of message."""

    key: str
    queue: str
    type: str
    kind: str
    #: Message of the newest of these failures, on one line.
    message: str
    oldest: int
    newest: int
    count: int
    #: The newest failures, at most MAX_LISTED if the page is about this group, else none.
    jobs: tuple[FailedJob, ...] = ()
    #: Error of the newest failure, with its traceback, if the page is about this group.
    error: ErrorView | None = None


@frozen
class RetriedError:
    """Jobs of one queue that wait to run again after an error of one type."""

    queue: str
    type: str
    #: Message of the job that came back last, on one line.
    message: str
    count: int
    #: Ids of some of these jobs.
    ids: tuple[str, ...]


@frozen
class FailuresPage:
    """The groups of failures, the largest first."""

    groups: tuple[FailureGroup, ...]
    #: The queue and the key that the page is about; "" for all.
    queue: str
    group: str
    #: Number of failed jobs that were read, and the number that the storage counts.
    scanned: int
    total: int
    is_approximate: bool
    #: Name of each queue with failed jobs, and their number.
    queues: tuple[tuple[str, int], ...]
    #: The errors for which jobs are retried now, the most frequent first, and the number of these jobs.
    retried: tuple[RetriedError, ...]
    retrying: int

    @property
    def is_complete(self) -> bool:
        return self.scanned >= self.total


@define(eq=False)
class _Group:
    queue: str
    error: Error | None
    newest: Outcome
    oldest: int
    count: int = 0
    #: The newest failures, as a heap: time of the end, id, outcome.
    latest: list[tuple[int, str, Outcome]] = field(factory=list)

    def add(self, id: str, outcome: Outcome) -> None:
        self.count += 1
        self.oldest = min(self.oldest, outcome.ended_at)
        if outcome.ended_at >= self.newest.ended_at:
            self.newest, self.error = outcome, outcome.error
        if len(self.latest) < MAX_LISTED:
            heappush(self.latest, (outcome.ended_at, id, outcome))
        elif outcome.ended_at > self.latest[0][0]:
            heapreplace(self.latest, (outcome.ended_at, id, outcome))


async def read_failures(source: Source, params: Mapping[str, str]) -> FailuresPage:
    """Return the failures of all queues, of one `queue`, or of one `group` of a queue."""
    queue, wanted = params.get("queue", ""), params.get("group", "")
    counts = await source.census.counts([queue] if queue else (), seconds=MAX_SECONDS)
    failed = {name: each.failed for name, each in counts.items() if each.failed}
    names = sorted(failed, key=lambda name: (-failed[name], name)) if not queue else [queue]
    budget = Budget(MAX_SCANNED, MAX_SECONDS)
    groups = await _collect(source, names, budget)
    shown = [
        _view(source, key, group, is_open=key == wanted)
        for key, group in groups.items()
        if wanted in ("", key)
    ]
    shown.sort(key=lambda group: (-group.count, -group.newest))
    of_page = {name: each for name, each in counts.items() if queue in ("", name)}
    return FailuresPage(
        groups=tuple(shown),
        queue=queue,
        group=wanted,
        scanned=budget.read,
        total=failed.get(queue, 0) if queue else sum(failed.values()),
        is_approximate=any(counts[name].approximate for name in names if name in counts),
        queues=tuple(sorted(failed.items(), key=lambda item: (-item[1], item[0])))[:50],
        retried=() if wanted else await read_retried(source, of_page),
        retrying=sum(each.retrying for each in of_page.values()),
    )


async def read_retried(source: Source, counts: Mapping[str, Counts]) -> tuple[RetriedError, ...]:
    """Return the errors for which jobs of some queues are retried. Read the MOST_RETRYING largest queues."""
    storage = await source.storage()
    names = sorted(
        (name for name, each in counts.items() if each.retrying),
        key=lambda name: (-counts[name].retrying, name),
    )
    read = await gather(names[:MOST_RETRYING], lambda name: group_retrying(storage, name, counts[name]))
    found = [
        RetriedError(
            group.queue,
            group.type or "no error",
            hidden_message(source, group.queue, group.error).strip().partition("\n")[0][:300],
            group.count,
            group.ids,
        )
        for groups in read
        for group in groups
    ]
    return tuple(sorted(found, key=lambda each: (-each.count, each.queue, each.type)))


async def failures_of_queue(source: Source, queue: str) -> tuple[tuple[FailureGroup, ...], int]:
    """Return the groups of the first failed jobs of a queue, the largest first, and their number of jobs."""
    budget = Budget(MAX_GROUPED, MAX_SECONDS / 3)
    groups = await _collect(source, [queue], budget)
    shown = [_view(source, key, group, is_open=False) for key, group in groups.items()]
    shown.sort(key=lambda group: (-group.count, -group.newest))
    return tuple(shown[:MAX_GROUPS]), budget.read


async def _collect(source: Source, queues: Sequence[str], budget: Budget) -> dict[str, _Group]:
    storage, groups = await source.storage(), dict[str, _Group]()
    for name in queues:
        async for id, outcome in scan_failed(storage, name, budget, PAGE_SIZE):
            key = group_key(source, name, outcome.error)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(name, outcome.error, outcome, outcome.ended_at)
            group.add(id, outcome)
    return groups


def _view(source: Source, key: str, group: _Group, *, is_open: bool) -> FailureGroup:
    newest = sorted(group.latest, key=lambda item: (-item[0], item[1])) if is_open else []
    return FailureGroup(
        key=key,
        queue=group.queue,
        type=group.error.type if group.error else "no error",
        kind=group.error.kind if group.error else "",
        message=_one_line(source, group),
        oldest=group.oldest,
        newest=group.newest.ended_at,
        count=group.count,
        jobs=tuple(
            FailedJob(
                group.queue,
                id,
                outcome.ended_at,
                outcome.attempts,
                hidden_message(source, group.queue, outcome.error).partition("\n")[0][:300],
            )
            for _, id, outcome in newest
        ),
        error=error_view(source, group.queue, group.error) if is_open else None,
    )


def _one_line(source: Source, group: _Group) -> str:
    return hidden_message(source, group.queue, group.error).strip().partition("\n")[0][:300]
