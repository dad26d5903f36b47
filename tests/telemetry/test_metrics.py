"""The Prometheus metrics match the logs and counts of the queues, on every storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry

from dibs import ConfigurationError, Dibs, Fixed
from dibs.telemetry.metrics import ClientMetrics, Metrics
from dibs.testing import using

app = Dibs("memory:")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@app.task(queue="send", max_retries=1, backoff=Fixed(30))
def send(to: str) -> None:
    if "@" not in to:
        raise ValueError(to)


@pytest.fixture(name="app")
async def app_anywhere(any_url: str) -> AsyncIterator[Dibs]:
    """An app on an empty storage, because the metrics count every queue of the storage."""
    async with Dibs(any_url) as there:
        yield there


async def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by (name, label values...)."""
    found = [sample for metric in await metrics.read() for sample in metric.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


async def test_ends_durations_and_states_are_counted() -> None:
    async with using(app, start=NOON) as rehearsal:
        metrics = Metrics(app)
        await metrics.read()
        await send.enqueue("ada@example.org")
        await send.enqueue("nobody")
        await send.options(delay=3600).enqueue("later@example.org")
        await rehearsal.run_due()
        await rehearsal.advance(31)
        await rehearsal.run_due()
        samples = await values(metrics)

    assert {"completed": 1, "retried": 1, "failed": 1} == {
        end: samples["dibs_ends_total", "send", end] for end in ("completed", "retried", "failed")
    }
    assert (1, 1, 1, 1) == tuple(
        samples["dibs_jobs", "send", state] for state in ("waiting", "scheduled", "completed", "failed")
    )
    assert 3 == samples["dibs_run_seconds_count", "send"]
    assert 1 == pytest.approx(samples["dibs_wait_seconds_sum", "send"])
    assert 2 == samples["dibs_wait_seconds_bucket", "send", "0.005"]


async def test_ends_before_the_first_read_are_left_out_and_later_ends_count_once(app: Dibs) -> None:
    queue = app.queue("q")
    await queue.enqueue(1, id="a")
    await queue.cancel("a")
    metrics = Metrics(app)
    before = await values(metrics)
    await queue.enqueue(1, id="b")
    await queue.cancel("b")
    once, twice = await values(metrics), await values(metrics)

    assert ("dibs_ends_total", "q", "cancelled") not in before
    assert 1 == once["dibs_ends_total", "q", "cancelled"] == twice["dibs_ends_total", "q", "cancelled"]
    assert 0 == once["dibs_log_gaps_total", "q"]


async def test_the_log_of_a_new_queue_is_read_from_its_start(app: Dibs) -> None:
    metrics = Metrics(app)
    await metrics.read()
    await app.queue("new").enqueue(1, id="a")
    await app.queue("new").cancel("a")

    assert 1 == (await values(metrics))["dibs_ends_total", "new", "cancelled"]


async def test_ends_on_several_pages_of_the_log_are_all_counted(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.telemetry.metrics.PAGE_SIZE", 3)
    metrics = Metrics(app, queues=["q"])
    await metrics.read()
    await app.queue("q").enqueue_many(app.queue("q").bind(n, id=f"{n}") for n in range(10))
    for number in range(10):
        await app.queue("q").cancel(f"{number}")
    together = await asyncio.gather(values(metrics), values(metrics))

    assert [10, 10] == [samples["dibs_ends_total", "q", "cancelled"] for samples in together]


async def test_scrapes_on_several_loops_count_each_event_once(app: Dibs) -> None:
    metrics = Metrics(app, ["q"])
    await metrics.read()
    for number in range(3):
        await app.queue("q").enqueue(number)
    async with app.queue("q").receive(wait=0) as claims:
        async for claim in claims:
            await claim.complete()
    scrapes = [asyncio.to_thread(asyncio.run, values(metrics)) for _ in range(4)]
    await asyncio.gather(values(metrics), values(metrics), *scrapes)

    assert 3 == (await values(metrics))["dibs_ends_total", "q", "completed"]


async def test_only_the_named_queues_are_counted(app: Dibs) -> None:
    for name in ("a", "b"):
        await app.queue(name).enqueue(1)
    samples = await values(Metrics(app, queues=["a"]))

    assert {"a"} == {labels[0] for _, *labels in samples}


async def test_an_async_endpoint_awaits_the_text(app: Dibs) -> None:
    await app.queue("q").enqueue(1)
    text = (await Metrics(app).text()).decode()

    assert 'dibs_jobs{queue="q",state="waiting"} 1.0' in text


async def test_collect_on_a_running_loop_names_the_async_method(app: Dibs) -> None:
    with pytest.raises(ConfigurationError, match=r"await metrics\.text"):
        Metrics(app).collect()


def test_a_registry_collects_the_metrics(storage_url: str) -> None:
    with Dibs(storage_url).sync as app:
        app.queue("q").enqueue(1)
        registry = CollectorRegistry()
        registry.register(Metrics(app._source))

        labels: dict[str, Any] = {"queue": "q", "state": "waiting"}
        assert 1 == registry.get_sample_value("dibs_jobs", labels)


def test_the_metrics_are_served_over_http() -> None:
    with Dibs("memory:").sync as app:
        app.queue("q").enqueue(1)
        with Metrics(app._source).serve(port=0) as port, urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()

    assert 'dibs_jobs{queue="q",state="waiting"} 1.0' in text


def test_a_page_whose_name_leads_to_this_machine_reads_no_metrics() -> None:
    with Dibs("memory:").sync as app, Metrics(app._source).serve(port=0) as port:
        address = f"http://127.0.0.1:{port}/metrics"
        with pytest.raises(HTTPError, match="421: Misdirected") as refused:
            urlopen(Request(address, headers={"Host": "evil.example"}))
        refused.value.close()
        with urlopen(Request(address, headers={"Host": f"localhost:{port}"})) as page:
            status = page.status

    assert 200 == status


async def test_only_ends_are_counted_at_log_level_all(app: Dibs) -> None:
    queue = app.queue("q")
    await queue.configure(log_level="all")
    metrics = Metrics(app)
    await metrics.read()
    await queue.enqueue(1, id="a")
    await queue.cancel("a")
    samples = await values(metrics)

    assert ["cancelled"] == [labels[1] for name, *labels in samples if name == "dibs_ends_total"]


async def test_a_log_that_was_trimmed_before_the_read_counts_as_a_gap() -> None:
    async with using(app, start=NOON) as rehearsal:
        queue = send.queue
        await queue.configure(log_age=10)
        metrics = Metrics(app)
        for number in range(2):
            await send.options(id=f"{number}").enqueue("ada@example.org")
            await queue.cancel(f"{number}")
            await metrics.read()
        await send.options(id="unread").enqueue("ada@example.org")
        await queue.cancel("unread")
        await rehearsal.advance(60)
        await queue.prune()
        samples = await values(metrics)

    assert 1 == samples["dibs_log_gaps_total", "send"]


async def test_the_client_metrics_tell_pending_waiting_and_throttled_calls() -> None:
    registry = CollectorRegistry()

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    async with Dibs("memory:", max_pending=3) as app:
        registry.register(ClientMetrics(app))
        calls = [asyncio.create_task(app.queue("q").enqueue(number)) for number in range(10)]
        for _ in range(10):
            await asyncio.sleep(0)
            if sample("dibs_client_enqueues", state="pending"):
                break
        assert sample("dibs_client_enqueues", state="pending") == 3
        assert sample("dibs_client_enqueues", state="waiting") == 7
        await asyncio.gather(*calls)

        assert sample("dibs_client_enqueues", state="waiting") == 0
        assert sample("dibs_client_throttled_total") == 7
