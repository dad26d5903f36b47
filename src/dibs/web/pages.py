"""The pages of the dashboard: how each is read, and the latest reading that all viewers share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Final

from attrs import define, field, frozen

from dibs.doctor.examination import DAMAGED
from dibs.errors import DibsError, StorageBusy, StorageDamaged
from dibs.web.reading.failures import read_failures
from dibs.web.reading.flows_page import read_flow, read_flows
from dibs.web.reading.history import History
from dibs.web.reading.job import read_form, read_job
from dibs.web.reading.output import Outputs
from dibs.web.reading.overview import Activity, read_overview
from dibs.web.reading.periodic import read_periodic
from dibs.web.reading.place import read_place
from dibs.web.reading.queue import read_queue
from dibs.web.reading.recent import Recent
from dibs.web.reading.search import search
from dibs.web.reading.shared import READ_TIMEOUT, SharedCall
from dibs.web.reading.source import Source
from dibs.web.reading.story import Stories
from dibs.web.reading.workers import read_workers

#: Seconds for which a reading serves further viewers of its page.
MAX_AGE: Final = 0.5
#: Seconds between two readings of a page with a filter: each of them is a scan.
FILTERED_PERIOD: Final = 30.0
#: Most readings that are remembered.
MAX_READINGS: Final = 100

Read = Callable[[Mapping[str, str]], Awaitable[Any]]
#: The name of a page, and the parameters that it uses.
PageKey = tuple[str, tuple[tuple[str, str], ...]]


@frozen
class Page:
    """A kind of page."""

    name: str
    title: str
    #: Names of the query parameters that select the content.
    params: tuple[str, ...]
    #: Seconds between two readings while somebody watches the page; None for a page without live updates.
    period: float | None
    read: Read


@frozen
class Alarm:
    """A finding of an examination that each page shows."""

    found: str
    subject: str
    #: The subject, if it is a queue, else "".
    queue: str


@define(eq=False)
class Pages:
    """All pages of one storage."""

    source: Source
    history: History = field(factory=History)
    _activity: Activity = field(factory=Activity, init=False)
    _recent: Recent = field(factory=Recent, init=False)
    _stories: Stories = field(factory=Stories, init=False)
    _outputs: Outputs = field(factory=Outputs, init=False)
    #: The stories of the ticks, in a cache of their own, so that they do not replace those of other ids.
    _ticks: Stories = field(factory=Stories, init=False)
    _readings: OrderedDict[PageKey, SharedCall[Any]] = field(factory=OrderedDict, init=False)
    #: The latest model of each page, and its time on the monotonic clock.
    _latest: OrderedDict[PageKey, tuple[Any, float]] = field(factory=OrderedDict, init=False)
    kinds: dict[str, Page] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.kinds = {page.name: page for page in self._all()}

    def _all(self) -> tuple[Page, ...]:
        source = self.source
        overview = partial(read_overview, source, self._activity)
        queue = partial(read_queue, source, self._activity, self._recent)
        job = partial(read_job, source, self._stories, self._outputs)
        return (
            Page("overview", "Overview", ("filter", "sort", "page"), 2.0, overview),
            Page("queue", "Queue", ("name", "state", "after", "prefix", "attr", "part", "hours"), 2.0, queue),
            Page("job", "Job", ("queue", "id"), 1.0, job),
            Page("failures", "Failures", ("queue", "group"), 10.0, partial(read_failures, source)),
            Page("periodic", "Periodic tasks", (), 5.0, partial(read_periodic, source, self._ticks)),
            Page("flows", "Flows", ("state", "nested", "after"), 2.0, partial(read_flows, source)),
            Page("flow", "Flow", ("id", "nodes", "group"), 1.0, partial(read_flow, source)),
            Page("workers", "Workers", (), 5.0, partial(read_workers, source)),
            Page("place", "Storage", (), 5.0, partial(read_place, source)),
            Page("history", "History", (), 30.0, self.history.read),
            Page("search", "Search", ("text", "prefix"), None, partial(search, source)),
            Page("enqueue", "Enqueue a job", ("queue",), None, partial(read_form, source)),
        )

    def key(self, name: str, params: Mapping[str, str]) -> PageKey:
        """Return the key of a page. Other parameters than those of the page do not count."""
        used = ((param, params[param]) for param in self.kinds[name].params if params.get(param))
        return name, tuple(used)

    def period(self, key: PageKey) -> float | None:
        """Return the seconds between two readings of a watched page; None for a page without live updates."""
        name, params = key
        filtered = name == "queue" and any(param in ("prefix", "attr", "part") for param, _ in params)
        return FILTERED_PERIOD if filtered else self.kinds[name].period

    async def read(self, key: PageKey) -> Any:
        """Return the model of a page. Concurrent and later calls, up to MAX_AGE seconds, share a reading.

        Raises StorageBusy after READ_TIMEOUT seconds, and the errors of the page.
        """
        reading = self._readings.setdefault(key, SharedCall(partial(self._read, key)))
        self._readings.move_to_end(key)
        if len(self._readings) > MAX_READINGS:
            self._readings.popitem(last=False)
        return await reading.answer(MAX_AGE)

    def alarms(self) -> tuple[Alarm, ...]:
        """Return the errors among the findings of the latest examination, for the banner of each page."""
        report = self.source.examination.glance()
        queues = self.source.census.known
        return tuple(
            Alarm(each.found, each.subject, each.subject if each.subject in queues else "")
            for each in (report.findings if report is not None else ())
            if each.severity == "error"
        )

    def forget(self) -> None:
        """Discard the cached readings after a write: the next view of each page reads the storage."""
        self._readings.clear()
        self.source.census.forget()

    async def _read(self, key: PageKey) -> Any:
        name, params = key
        limit = asyncio.timeout(READ_TIMEOUT)
        try:
            async with limit:
                model = await self.kinds[name].read(dict(params))
        except TimeoutError:
            if not limit.expired():
                raise
            raise StorageBusy(f"the storage did not answer within {READ_TIMEOUT:g} s") from None
        self._latest[key] = model, monotonic()
        self._latest.move_to_end(key)
        if len(self._latest) > MAX_READINGS:
            self._latest.popitem(last=False)
        return model

    def latest(self, key: PageKey) -> tuple[Any, float] | None:
        """Return the latest model of a page and its age in seconds; None if there is none."""
        model, at = self._latest.get(key, (None, 0.0))
        return None if model is None else (model, monotonic() - at)


def reason_of(error: DibsError) -> str:
    """Return why a page cannot be read and, if data is damaged, what to do.

    The page Storage, which has this remedy among the findings, cannot be read either.
    """
    return f"{error}. {DAMAGED.advice}" if isinstance(error, StorageDamaged) else str(error)
