"""Numbers for Prometheus, read from what every queue keeps anyway: its log and its counts.

Whoever scrapes pays, and nobody else: no worker counts anything for this, and one reader sees the runs of
all workers, timed by the storage's own clock, also those that ended because their worker died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, get_args

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, start_http_server
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "dibs.telemetry.metrics needs prometheus-client: pip install 'dibs[metrics]'"
    ) from error

from dibs.client.app import Dibs
from dibs.client.sync import background_loop as bridge
from dibs.model.events import AttemptKind, LogEvent
from dibs.model.results import Counts, State
from dibs.storage.protocol import LATEST, Storage

#: Events in one read of a log.
PAGE: Final = 1000
#: Seconds: from a quick handler to one of an hour.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
STATES: Final = get_args(State)
ENDS: Final = frozenset(get_args(AttemptKind))


class Metrics(Collector):
    """The numbers of an app's queues, each time somebody asks; what ended before the first time is left out.

    dibs_jobs{queue,state}, dibs_ends_total{queue,end}, dibs_run_seconds{queue} and dibs_wait_seconds{queue}
    (from due to claimed); dibs_log_gaps_total{queue} counts where the log was trimmed before it was read.
    Ends need a queue's log at level `runs`, its default.
    """

    def __init__(self, app: Dibs, queues: Sequence[str] | None = None) -> None:
        self._app = app
        self._queues = queues
        self._offsets: dict[str, str] = {}
        self._begun = False
        #: Two scrapes at a time would count the same events twice.
        self._reading = asyncio.Lock()
        self._ends = Counter("dibs_ends", "Attempts by how they ended.", ("queue", "end"), registry=None)
        self._gaps = Counter("dibs_log_gaps", "Times the log was trimmed unread.", ("queue",), registry=None)
        self._runs = _histogram("dibs_run_seconds", "From the claim to the end of an attempt.")
        self._waits = _histogram("dibs_wait_seconds", "From the time a job was due to its claim.")

    def describe(self) -> Iterable[Metric]:
        """Name nothing: a registry that takes this in need not ask the storage for it."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Read what is new. For a thread of its own; on a running event loop `await metrics.text()`."""
        handle = self._app._storage_handle  # noqa: SLF001 - as the app's own twin does
        return bridge.run(handle, "await metrics.text()", self.read())

    async def text(self) -> bytes:
        """Return all numbers as Prometheus reads them."""
        registry = CollectorRegistry()
        registry.register(_Read(await self.read()))
        return generate_latest(registry)

    @contextmanager
    def served(self, port: int = 9464, host: str = "127.0.0.1") -> Iterator[int]:
        """Let them be scraped over HTTP for a block, which gets the port; 0 finds a free one."""
        registry = CollectorRegistry()
        registry.register(self)
        server, thread = start_http_server(port, host, registry)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    async def read(self) -> list[Metric]:
        """Read what is new in the logs, and count what is there."""
        # Lent, so that a scrape leaves the app as it found it.
        async with self._reading, self._app._storage_handle.opened_temporarily():  # noqa: SLF001
            storage = self._app.storage
            queues = self._queues or [info.name for info in await storage.queues()]
            for queue in queues:
                await self._follow(storage, queue)
            self._begun = True
            counts = await storage.counts(queues)
        kept = (self._ends, self._runs, self._waits, self._gaps)
        return [_jobs(counts), *(metric for one in kept for metric in one.collect())]

    async def _follow(self, storage: Storage, queue: str) -> None:
        # A queue that was not there at the first reading is read from its start.
        after = self._offsets.get(queue) or (None if self._begun else LATEST)
        while True:
            page = await storage.events(queue, after=after, limit=PAGE)
            self._gaps.labels(queue).inc(page.fell_off)
            for _, event in page.events:
                self._take(queue, event)
            after = self._offsets[queue] = page.offset
            if not page.events:
                return

    def _take(self, queue: str, event: LogEvent) -> None:
        if event.kind not in ENDS:
            return
        self._ends.labels(queue, event.kind).inc()
        if event.claimed_at is not None and event.finished_at is not None:
            self._runs.labels(queue).observe((event.finished_at - event.claimed_at) / 1000)
            self._waits.labels(queue).observe(max(0, event.claimed_at - event.run_at) / 1000)


class _Read(Collector):
    """What was read already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _histogram(name: str, what: str) -> Histogram:
    return Histogram(name, what, ("queue",), buckets=BUCKETS, registry=None)


def _jobs(counts: dict[str, Counts]) -> Metric:
    """Count ids by state; waiting includes scheduled, and active handed_off, as everywhere in dibs."""
    family = GaugeMetricFamily("dibs_jobs", "Ids by the state they are in.", labels=("queue", "state"))
    for queue, found in counts.items():
        for state in STATES:
            family.add_metric((queue, state), getattr(found, state))
    return family
