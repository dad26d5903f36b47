"""The overview: all queues with their depth, rates and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import frozen

from dibs.model.job import FAIL_SUFFIX
from dibs.model.results import Counts, QueueInfo
from dibs.web.reading.queues.activity import Activity, Rates
from dibs.web.reading.source import Source

#: Queues on one page.
PAGE_SIZE: Final = 50
#: Seconds for which the records of workers are shared.
RECORDS_AGE: Final = 5.0
STATES: Final = ("waiting", "scheduled", "active", "blocked", "failed")


@frozen
class QueueRow:
    """A queue in the list of the overview."""

    name: str
    paused: bool
    max_active: int | None
    counts: Counts
    rates: Rates
    #: True for the queue of a failure handler, whose name ends in "!fail".
    is_fail_queue: bool


@frozen
class Overview:
    """The queues of a storage. The sums are those of all queues, not only of this page."""

    rows: tuple[QueueRow, ...]
    totals: Mapping[str, int]
    is_approximate: bool
    #: Sums of the rates of the queues on this page.
    rates: Rates
    paused: int
    #: Number of queues, of those that the filter selects, and the number of this page, from 1.
    queues: int
    #: Number of queues that the sums leave out, because no reading has counted them yet.
    uncounted: int
    selected: int
    page: int
    pages: int
    filter: str
    sort: str
    #: Number of workers that live, and of those that hold jobs.
    workers: int
    busy_workers: int


#: Name of an order -> the key by which the rows are sorted. The default order changes rarely, so that rows do
#: not jump while somebody reads them: queues with a job or an outcome come first, each part by name.
ORDERS: Final[dict[str, Callable[[QueueInfo, Counts], tuple[object, ...]]]] = {
    "name": lambda info, counts: (counts == Counts(), info.name),
    "active": lambda info, counts: (-counts.active, info.name),
    "waiting": lambda info, counts: (-counts.waiting, info.name),
    "failed": lambda info, counts: (-counts.failed, info.name),
}
DEFAULT_ORDER: Final = "name"
#: Stands for the counts of a queue that was not counted yet: such a queue is not taken for an empty one.
UNCOUNTED: Final = Counts(completed=1)


async def read_overview(source: Source, activity: Activity, params: Mapping[str, str]) -> Overview:
    """Return the overview. It counts the queues of this page and reads their logs."""
    storage = await source.storage()
    infos = [QueueInfo(name, settings) for name, settings in (await source.census.queues()).items()]
    wanted, order = params.get("filter", "").strip(), params.get("sort", DEFAULT_ORDER)
    sort, known = ORDERS.get(order, ORDERS[DEFAULT_ORDER]), source.census.known
    selected = [info for info in infos if wanted.lower() in info.name.lower()]
    selected.sort(key=lambda info: sort(info, known.get(info.name, UNCOUNTED)))
    pages = max(1, -(-len(selected) // PAGE_SIZE))
    page = min(_page_number(params), pages)
    shown = selected[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    counts = await source.census.counts([info.name for info in shown])
    active = await activity.read(storage, {info.name: counts.get(info.name, Counts()) for info in shown})
    workers = await source.workers.answer(RECORDS_AGE)
    rows = tuple(_row(info, counts.get(info.name, Counts()), active[info.name].rates()) for info in shown)
    return Overview(
        rows=rows,
        totals={state: sum(getattr(each, state) for each in counts.values()) for state in STATES},
        is_approximate=any(each.approximate for each in counts.values()),
        rates=_sum_rates(rows),
        paused=sum(info.settings.paused for info in infos),
        queues=len(infos),
        uncounted=source.census.uncounted,
        selected=len(selected),
        page=page,
        pages=pages,
        filter=wanted,
        sort=order if order in ORDERS else DEFAULT_ORDER,
        workers=len(workers),
        busy_workers=sum(worker.running > 0 for worker in workers),
    )


def _page_number(params: Mapping[str, str]) -> int:
    text = params.get("page", "1")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def _row(info: QueueInfo, counts: Counts, rates: Rates) -> QueueRow:
    return QueueRow(
        info.name,
        info.settings.paused,
        info.settings.max_active,
        counts,
        rates,
        info.name.endswith(FAIL_SUFFIX),
    )


def _sum_rates(rows: tuple[QueueRow, ...]) -> Rates:
    length = max((len(row.rates.speeds) for row in rows), default=0)
    speeds = [0.0] * length
    depths = [0] * length
    for row in rows:
        # The samples end at the same reading, so they are aligned at their ends.
        for index, (speed, depth) in enumerate(
            zip(reversed(row.rates.speeds), reversed(row.rates.depths), strict=True), 1
        ):
            speeds[-index] += speed
            depths[-index] += depth
    known = [row.rates for row in rows if row.rates.ended is not None]
    if not known:
        return Rates()
    return Rates(
        arrived=sum(each.arrived or 0 for each in known),
        ended=sum(each.ended or 0 for each in known),
        failed=sum(each.failed or 0 for each in known),
        is_estimate=any(each.is_estimate for each in known),
        depths=tuple(depths),
        speeds=tuple(speeds),
    )
