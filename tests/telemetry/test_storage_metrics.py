"""The metrics of a whole storage: its health, the workers that live, and the findings of `dibs doctor`."""

from __future__ import annotations

from urllib.request import urlopen

import pytest

from dibs import Dibs
from dibs.model.worker_record import WorkerState
from dibs.telemetry.metrics import Metrics
from dibs.telemetry.storage_metrics import StorageMetrics
from dibs_conformance.servers import start_redis
from tests.doctor.test_examination import put_record

UP = ("dibs_storage_up",)


async def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by (name, label values...)."""
    found = [sample for metric in await metrics.read() for sample in metric.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


async def test_they_include_all_metrics_of_the_queues(any_url: str) -> None:
    async with Dibs(any_url) as app:
        metrics = StorageMetrics(app)
        await metrics.read()
        await app.queue("emails").enqueue(1, id="a")
        await app.queue("emails").cancel("a")
        samples = await values(metrics)

    assert 1 == samples[UP] == samples["dibs_ends_total", "emails", "cancelled"]
    assert 0 == samples["dibs_jobs", "emails", "waiting"]


async def test_live_workers_are_counted_by_state(any_url: str) -> None:
    async with Dibs(any_url) as app:
        metrics = StorageMetrics(app)
        before = await values(metrics)
        for name, state in {
            "a": WorkerState(ready=True),
            "b": WorkerState(ready=True),
            "c": WorkerState(ready=False),
            "d": WorkerState(ready=True, stopping=True),
        }.items():
            await put_record(app.storage, "emails", name=name, state=state)
        after = await values(metrics)

    states = [("dibs_workers", state) for state in ("ready", "not_ready", "stopping")]
    assert ([0, 0, 0], [2, 1, 1]) == tuple([samples[key] for key in states] for samples in (before, after))


async def test_findings_are_counted_and_at_most_a_minute_old(any_url: str) -> None:
    found = ("dibs_findings", "queue-not-served", "error")
    async with Dibs(any_url) as app:
        for queue in ("a", "b"):
            await app.queue(queue).enqueue(1)
        metrics = StorageMetrics(app)
        first = await values(metrics)
        for queue in ("a", "b"):
            await app.queue(queue).clear()
        cached = await values(metrics)
        metrics._examined_at -= 60
        later = await values(metrics)

    assert 2 == first[found] == cached[found]
    assert found not in later


@pytest.mark.long
async def test_a_scrape_without_a_storage_says_so_and_keeps_the_counters() -> None:
    with start_redis() as server:
        async with Dibs(server.url, call_timeout=5) as app:
            metrics = StorageMetrics(app)
            await metrics.read()
            await app.queue("emails").enqueue(1, id="a")
            await app.queue("emails").cancel("a")
            up = await values(metrics)
            server.stop()
            down = await values(metrics)

    ended, error = (
        ("dibs_ends_total", "emails", "cancelled"),
        ("dibs_storage_errors_total", "StorageUnavailable"),
    )
    assert (1, 1) == (up[UP], up[ended])
    assert error not in up
    assert (0, 1, 1) == (down[UP], down[ended], down[error])
    assert ("dibs_jobs", "emails", "waiting") not in down


@pytest.mark.long
def test_a_server_without_a_storage_answers() -> None:
    # Nothing listens on port 1.
    with StorageMetrics(Dibs("redis://127.0.0.1:1")).serve(port=0) as port:
        text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()

    assert "dibs_storage_up 0.0" in text
    assert 'dibs_storage_errors_total{error="StorageUnavailable"} 1.0' in text
