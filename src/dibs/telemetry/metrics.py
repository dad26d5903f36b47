"""Metrics for Prometheus: `Metrics` of the queues, and `ClientMetrics` of the calls of one process.

`Metrics` computes its values at each scrape from the logs and the counts of the queues. Workers do no work
for the metrics. One exporter sees the runs of all workers, with the times of the storage's clock, and also
the runs that ended because their worker died.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, get_args
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from attrs import frozen

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise ImportError(
        "dibs.telemetry.metrics needs prometheus-client: pip install 'dibs[metrics]'"
    ) from _error

from dibs.app import Dibs
from dibs.client.sync import background_loop
from dibs.host_names import is_allowed_host, is_loopback
from dibs.model.events import AttemptKind, LogEvent
from dibs.model.results import Counts, State
from dibs.model.worker_record import without_reserved
from dibs.storage.protocol import LATEST, Storage

#: Largest number of log events that one request reads.
PAGE_SIZE: Final = 1000
#: Seconds between two attempts of a scrape to begin, while another one is reading.
LOCK_POLL_SECONDS: Final = 0.01
#: Upper bounds of the histograms in seconds: 5 ms to 1 hour.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
STATES: Final = (*get_args(State), "retrying")
ATTEMPT_ENDS: Final = frozenset(get_args(AttemptKind))


class Metrics(Collector):
    """A Prometheus collector for the queues of an app.

    - `dibs_jobs{queue,state}`: ids in each state.
    - `dibs_ends_total{queue,end}`: attempts by their end.
    - `dibs_run_seconds{queue}`: histogram of the time from claim to end.
    - `dibs_wait_seconds{queue}`: histogram of the time from due to claim.
    - `dibs_log_gaps_total{queue}`: times that the log was trimmed before the exporter read it.

    Attempts that ended before the first scrape are not counted. All metrics except `dibs_jobs` need the log
    of the queue at level `runs`, the default. `queues` are the names of the queues; None means all queues of
    the storage.
    """

    def __init__(self, app: Dibs, queues: Sequence[str] | None = None) -> None:
        self._app = app
        self._queues = queues
        self._offsets: dict[str, str] = {}
        self._was_read = False
        #: Held during a read, because two concurrent scrapes would count the same events twice. A lock of
        #: threads, because the scrapes may run on several event loops.
        self._read_lock = threading.Lock()
        self._end_counter = Counter("dibs_ends", "Attempts by their end.", ("queue", "end"), registry=None)
        self._gap_counter = Counter(
            "dibs_log_gaps", "Times that the log was trimmed before it was read.", ("queue",), registry=None
        )
        self._run_histogram = _new_histogram(
            "dibs_run_seconds", "Time from the claim to the end of an attempt."
        )
        self._wait_histogram = _new_histogram(
            "dibs_wait_seconds", "Time from the due time of a job to its claim."
        )

    def describe(self) -> Iterable[Metric]:
        """Return (), so that adding the collector to a registry reads nothing from the storage."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Read new events and return all metrics. It blocks; on an event loop use `await metrics.text()`."""
        handle = self._app._storage_handle  # noqa: SLF001 - metrics is a part of dibs
        return background_loop.run(handle, "await metrics.text()", self.read())

    async def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        registry = CollectorRegistry()
        registry.register(_ReadMetrics(await self.read()))
        return generate_latest(registry)

    @contextmanager
    def serve(self, port: int = 9464, host: str = "127.0.0.1") -> Iterator[int]:
        """Serve the metrics over HTTP within a `with` block; yield the port. `port=0` selects a free port."""
        registry = CollectorRegistry()
        registry.register(self)
        server, thread = start_http_server(port, host, registry)
        app = server.get_app()
        if app is not None and is_loopback(str(server.server_address[0])):
            server.set_app(_refusing_other_hosts(app))
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    async def read(self) -> list[Metric]:
        """Read the new events of the logs and the counts of the queues, and return all metrics."""
        while not self._read_lock.acquire(blocking=False):  # noqa: ASYNC110 - an event belongs to one loop
            await asyncio.sleep(LOCK_POLL_SECONDS)
        try:
            return await self._read()
        finally:
            self._read_lock.release()

    async def _read(self) -> list[Metric]:
        # A scrape closes the app again if the app was not open before.
        async with self._app._storage_handle.opened_temporarily():  # noqa: SLF001
            storage = self._app.storage
            queues = self._queues or [info.name for info in without_reserved(await storage.queues())]
            for queue in queues:
                await self._read_new_events(storage, queue)
            self._was_read = True
            counts = await storage.counts(queues)
        return [_jobs_gauge(counts), *self.counted()]

    def counted(self) -> list[Metric]:
        """Return the counters and histograms as the last read left them, without a read."""
        collectors = (self._end_counter, self._run_histogram, self._wait_histogram, self._gap_counter)
        return [metric for collector in collectors for metric in collector.collect()]

    async def _read_new_events(self, storage: Storage, queue: str) -> None:
        # A queue that was created after the first read is read from the start of its log.
        after = self._offsets.get(queue) or (None if self._was_read else LATEST)
        while True:
            page = await storage.events(queue, after=after, limit=PAGE_SIZE)
            self._gap_counter.labels(queue).inc(page.fell_off)
            for _, event in page.events:
                self._count_attempt(queue, event)
            after = self._offsets[queue] = page.offset
            if not page.events:
                return

    def _count_attempt(self, queue: str, event: LogEvent) -> None:
        if event.kind not in ATTEMPT_ENDS:
            return
        self._end_counter.labels(queue, event.kind).inc()
        if event.claimed_at is not None and event.finished_at is not None:
            self._run_histogram.labels(queue).observe((event.finished_at - event.claimed_at) / 1000)
            self._wait_histogram.labels(queue).observe(max(0, event.claimed_at - event.run_at) / 1000)


@frozen(eq=False)
class ClientMetrics(Collector):
    """A Prometheus collector for the `enqueue` calls of an app in this process, over all its event loops.

    - `dibs_client_enqueues{state}`: calls in state `pending`, at most `max_pending` on each event loop, and
      calls in state `waiting`, which wait for a pending one to end.
    - `dibs_client_throttled_total`: calls that had to wait because `max_pending` calls were before them.

    A scrape reads no storage. Add the collector to the registry of each process that enqueues. The counter
    starts at 0 again when the app is closed.
    """

    _app: Dibs

    def collect(self) -> Iterable[Metric]:
        """Return the current values."""
        slots = self._app._storage_handle.call_slots()  # noqa: SLF001 - metrics is a part of dibs
        calls = GaugeMetricFamily(
            "dibs_client_enqueues", "Enqueue calls: pending, or waiting.", labels=("state",)
        )
        calls.add_metric(("pending",), sum(one.pending for one in slots))
        calls.add_metric(("waiting",), sum(one.waiting for one in slots))
        throttled = CounterMetricFamily("dibs_client_throttled", "Enqueue calls that max_pending made wait.")
        throttled.add_metric((), sum(one.throttled for one in slots))
        return [calls, throttled]


@frozen(eq=False)
class _ReadMetrics(Collector):
    """A collector of metrics that were read before, since `collect` cannot await the storage."""

    _metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _refusing_other_hosts(app: WSGIApplication) -> WSGIApplication:
    """Return a WSGI application that refuses requests with the name of another host (dibs.host_names)."""

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST")
        if host is None or is_allowed_host(host):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"The metrics are served to the names of this machine only: localhost, or its address.\n"]

    return checked


def _new_histogram(name: str, description: str) -> Histogram:
    return Histogram(name, description, ("queue",), buckets=BUCKETS, registry=None)


def _jobs_gauge(counts: dict[str, Counts]) -> Metric:
    """Return the gauge of ids by state. Scheduled and retrying ids are among the waiting ones."""
    family = GaugeMetricFamily("dibs_jobs", "Ids by state.", labels=("queue", "state"))
    for queue, queue_counts in counts.items():
        for state in STATES:
            family.add_metric((queue, state), getattr(queue_counts, state))
    return family
