"""Metrics of a whole storage for Prometheus: its queues, its workers, and the findings of `dibs doctor`.

`dibs metrics` serves them. An alert needs a value also while the storage does not answer, so a scrape then
succeeds, with `dibs_storage_up` 0.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from typing import Final

try:
    from prometheus_client import Counter
    from prometheus_client.core import GaugeMetricFamily, Metric
except ImportError as _error:
    raise ImportError(
        "dibs.telemetry.storage_metrics needs prometheus-client: pip install 'dibs[metrics]'"
    ) from _error

from dibs.app import Dibs
from dibs.client.worker_info import WorkerInfo
from dibs.doctor import Report, examine_open
from dibs.errors import StorageError
from dibs.telemetry.metrics import Metrics

#: Seconds after which a scrape examines the storage again.
EXAMINATION_AGE: Final = 60.0
#: Seconds that an examination may take: Prometheus gives up a scrape after 10 s by default.
EXAMINATION_SECONDS: Final = 5.0
WORKER_STATES: Final = ("ready", "not_ready", "stopping")


class StorageMetrics(Metrics):
    """A Prometheus collector for a storage: all of `Metrics`, and the health of the storage and its workers.

    - `dibs_storage_up`: 1 if the storage answered this scrape, else 0.
    - `dibs_storage_errors_total{error}`: scrapes that the storage did not answer, by the type of the error.
    - `dibs_workers{state}`: live workers that are `ready` to claim, `not_ready`, or `stopping`.
    - `dibs_findings{code,severity}`: findings of `dibs doctor`, a minute old at most, and up to 11 of a code.

    While the storage does not answer, the counters keep their values, and the gauges are left out.
    """

    def __init__(self, app: Dibs, queues: Sequence[str] | None = None) -> None:
        super().__init__(app, queues)
        self._error_counter = Counter(
            "dibs_storage_errors",
            "Scrapes that the storage did not answer, by the type of the error.",
            ("error",),
            registry=None,
        )
        self._report: Report | None = None
        self._examined_at = -math.inf

    async def read(self) -> list[Metric]:
        """Read logs, counts and workers, examine the storage if it is time, and return all metrics."""
        metrics: list[Metric] = []
        try:
            async with self._app._storage_handle.opened_temporarily():  # noqa: SLF001 - a part of dibs
                metrics += await super().read()
                metrics.append(_workers_gauge(await self._app.workers()))
                metrics.append(_findings_gauge(await self._examine()))
            is_up = True
        except StorageError as error:
            self._error_counter.labels(type(error).__name__).inc()
            metrics, is_up = self.counted(), False
        return [_up_gauge(is_up=is_up), *metrics, *self._error_counter.collect()]

    async def _examine(self) -> Report | None:
        """Return a report of at most EXAMINATION_AGE seconds; the one before if an examination takes long."""
        now = time.monotonic()
        if now - self._examined_at >= EXAMINATION_AGE:
            self._examined_at = now
            limit = asyncio.timeout(EXAMINATION_SECONDS)
            try:
                async with limit:
                    self._report = await examine_open(self._app.storage)
            except TimeoutError:
                if not limit.expired():
                    raise
        return self._report


def _up_gauge(*, is_up: bool) -> Metric:
    return GaugeMetricFamily("dibs_storage_up", "1 if the storage answered this scrape, else 0.", int(is_up))


def _workers_gauge(workers: Iterable[WorkerInfo]) -> Metric:
    family = GaugeMetricFamily("dibs_workers", "Live workers by state.", labels=("state",))
    # A holder of jobs without a record may be dead: nothing is known of its state.
    tally = Tally(_worker_state(worker) for worker in workers if worker.recorded)
    for state in WORKER_STATES:
        family.add_metric((state,), tally[state])
    return family


def _worker_state(worker: WorkerInfo) -> str:
    if worker.stopping:
        return "stopping"
    return "ready" if worker.ready else "not_ready"


def _findings_gauge(report: Report | None) -> Metric:
    family = GaugeMetricFamily("dibs_findings", "Findings of dibs doctor.", labels=("code", "severity"))
    findings = report.findings if report is not None else ()
    for (code, severity), number in Tally((each.code, each.severity) for each in findings).items():
        family.add_metric((code, severity), number)
    return family
