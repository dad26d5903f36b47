"""The figures of ids: the slowest, those that fail and wait most, and the latest runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dibs.spark.report.figures.findings import FAILURE_ENDS, PoisonId, find_poison_ids
from dibs.spark.report.figures.reader import HistoryReader

#: Number of runs that are kept of an id: the latest ones.
RUNS_PER_ID: Final = 5
#: Characters that are kept of an error message, from its begin, and of a traceback, from its end.
MESSAGE_LENGTH: Final = 500
TRACEBACK_LENGTH: Final = 2_000
#: Number of ids listed as the slowest, as the most active, and as those with most failures.
TOP_IDS: Final = 10
#: Number of ids, those with most attempts, that are checked for failing nearly every time.
POISON_CANDIDATES: Final = 200


class RunSummary(Struct, frozen=True, kw_only=True):
    """One run of an id. Times are in ms, `finished_at` since the epoch."""

    finished_at: int
    end: str
    attempt: int | None
    wait_ms: int
    run_ms: int
    holder: str | None
    error_type: str | None
    error_message: str | None
    error_traceback: str | None


class IdSummary(Struct, frozen=True, kw_only=True):
    """An id in one of the tables of ids. Times are ms."""

    id: str
    attempts: int
    completed: int
    failed: int
    #: Attempts that failed, were retried, stalled or timed out.
    failures: int
    merged: int
    longest_wait_ms: int
    longest_run_ms: int
    run_ms: int


class TopIds(Struct, frozen=True, kw_only=True):
    """The ids of a queue that a report lists."""

    slowest: tuple[IdSummary, ...] = ()
    hottest: tuple[IdSummary, ...] = ()
    #: The ids with most failures.
    failing: tuple[IdSummary, ...] = ()

    def names(self) -> Iterator[str]:
        """Yield the listed ids; an id may come several times."""
        yield from (row.id for row in (*self.failing, *self.slowest, *self.hottest))


def latest_runs(
    reader: HistoryReader, queue: str, ids: Iterable[str], end: int, *, with_error_texts: bool = True
) -> dict[str, tuple[RunSummary, ...]]:
    """Return id -> its latest RUNS_PER_ID runs before `end` (ms), the latest first, in the order of `ids`."""
    found: dict[str, list[RunSummary]] = {id: [] for id in ids}
    texts = (
        f"nullif(left(error_message, {MESSAGE_LENGTH}), '') AS error_message, "
        f"nullif(right(error_traceback, {TRACEBACK_LENGTH}), '') AS error_traceback"
        if with_error_texts
        else "NULL AS error_message, NULL AS error_traceback"
    )
    order = "ORDER BY finished_at DESC, attempt DESC NULLS LAST"
    rows = reader.rows(
        'SELECT id, epoch_ms(finished_at) AS finished_at, "end", attempt, wait_ms, run_ms, holder, '  # noqa: S608
        f"error_type, {texts} FROM runs WHERE queue = $queue AND id IN (SELECT unnest($ids)) "
        "AND epoch_ms(finished_at) < $end "
        f"QUALIFY row_number() OVER (PARTITION BY id {order}) <= {RUNS_PER_ID} {order}",
        queue=queue,
        ids=list(found),
        end=end,
    )
    for row in rows:
        found[row.pop("id")].append(RunSummary(**row))
    return {id: tuple(runs) for id, runs in found.items()}


_FAILURES: Final = " + ".join(FAILURE_ENDS)


def top_ids(reader: HistoryReader, span: tuple[int, int]) -> TopIds:
    """Return the ids of the selected queue that ended in a span of ms."""
    reader.sum_ids(*span)
    slowest, hottest, failing = (_best(reader, order) for order in ("longest_run_ms", "attempts", "failures"))
    return TopIds(slowest=slowest, hottest=hottest, failing=tuple(row for row in failing if row.failures))


def _best(reader: HistoryReader, order: str) -> tuple[IdSummary, ...]:
    names = [
        f"{_FAILURES} AS failures" if name == "failures" else name for name in IdSummary.__struct_fields__
    ]
    rows = reader.rows(
        f"SELECT {', '.join(names)} FROM its_ids WHERE attempts > 0 "  # noqa: S608 - our names
        f"ORDER BY {order} DESC, id LIMIT {TOP_IDS}"
    )
    return tuple(IdSummary(**row) for row in rows)


def poison_ids(reader: HistoryReader, queue: str, failures: int) -> list[PoisonId]:
    """Return the ids of the selected queue that fail nearly every time, of those that were summed last.

    `failures` are all failures of the queue.
    """
    if not failures:
        return []
    suspects = reader.rows(
        f"SELECT id, attempts, completed, {', '.join(FAILURE_ENDS)} FROM its_ids "  # noqa: S608 - our names
        f"WHERE ({_FAILURES}) * 2 > attempts ORDER BY attempts DESC, id LIMIT {POISON_CANDIDATES}"
    )
    return [_with_error_type(reader, poison) for poison in find_poison_ids(queue, suspects, failures)]


def _with_error_type(reader: HistoryReader, poison: PoisonId) -> PoisonId:
    """Return the poison id with `error_type` set to the most frequent class of its errors."""
    found: list[dict[str, Any]] = reader.rows(
        "SELECT error_type FROM its_runs WHERE id = $id AND error_type IS NOT NULL "
        "GROUP BY error_type ORDER BY count(*) DESC, error_type LIMIT 1",
        id=poison.id,
    )
    return replace(poison, error_type=found[0]["error_type"] if found else None)
