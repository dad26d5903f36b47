"""One trace contains the enqueue and the run, also in different processes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dibs import Dibs, JobFailed, Refused, Snooze, current_job
from dibs.telemetry.tracing import trace_app
from dibs.testing import using
from tests.client import handlers


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    exporter.shutdown()


provider = TracerProvider()
traced = Dibs("memory:")
trace_app(traced, provider)


@traced.task(queue="outer")
async def outer(number: int) -> int:
    current_job().then(inner.bind(number))
    return number


@traced.task(queue="inner")
def inner(number: int) -> str:
    return str(trace.get_current_span().get_span_context().span_id)


@traced.task(queue="broken", max_retries=0)
def broken() -> None:
    raise ValueError("no")


@traced.task(queue="sleepy")
def sleepy() -> None:
    raise Snooze(delay=60)


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = (span for span in spans.get_finished_spans() if span.name == name)
    return found


def span_ids(context: trace.SpanContext | None) -> tuple[int, int]:
    """Return the trace id and the span id of a span context."""
    assert context is not None
    return context.trace_id, context.span_id


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {})[name]


async def test_the_span_of_a_run_is_a_child_of_the_enqueue(spans: InMemorySpanExporter) -> None:
    async with using(traced) as rehearsal:
        ticket = await inner.options(id="a").enqueue(1)
        await rehearsal.run_due()
        result = await ticket.result(wait=0)
    send, process = named(spans, "send inner"), named(spans, "process inner")

    assert span_ids(send.context) == span_ids(process.parent)
    assert [span_ids(send.context)] == [span_ids(link.context) for link in process.links]
    assert str(process.context.span_id) == result
    assert ("a", 1) == (attribute(process, "messaging.message.id"), attribute(process, "dibs.attempt"))
    assert attribute(process, "dibs.fence") > 0


async def test_the_span_of_an_enqueue_is_a_child_of_the_current_span(spans: InMemorySpanExporter) -> None:
    async with using(traced):
        with provider.get_tracer("test").start_as_current_span("request") as request:
            await inner.enqueue_many([inner.bind(1), inner.bind(2)])
    send = named(spans, "send inner")

    assert span_ids(request.get_span_context()) == span_ids(send.parent)
    assert 2 == attribute(send, "messaging.batch.message_count")


async def test_the_span_of_a_follow_up_is_a_child_of_the_run(spans: InMemorySpanExporter) -> None:
    async with using(traced) as rehearsal:
        await outer.enqueue(1)
        await rehearsal.run_due()

    assert span_ids(named(spans, "process outer").context) == span_ids(named(spans, "process inner").parent)


async def test_an_exception_of_a_handler_sets_the_status_of_its_span(spans: InMemorySpanExporter) -> None:
    async with using(traced) as rehearsal:
        ticket = await broken.enqueue()
        await rehearsal.run_due()

        with pytest.raises(JobFailed) as caught:
            await ticket.result(wait=0)
    assert "ERROR" == named(spans, "process broken").status.status_code.name
    assert "dibs/telemetry" not in caught.value.error.traceback


async def test_attributes_of_the_job_take_precedence(spans: InMemorySpanExporter) -> None:
    async with using(traced):
        ticket = await inner.options(attributes={"traceparent": "mine", "tenant": 7}).enqueue(1)
        status = await ticket.status()

    assert {"traceparent": "mine", "tenant": 7} == status.attributes


@pytest.mark.parametrize("value", [7, None, "no context", {"a": 1}])
async def test_an_invalid_trace_context_is_ignored(value: Any) -> None:
    async with using(traced) as rehearsal:
        ticket = await inner.options(attributes={"traceparent": value}).enqueue(1)
        await rehearsal.run_due()

        assert "completed" == (await ticket.status()).state


async def test_a_refused_enqueue_sets_the_status_of_its_span(spans: InMemorySpanExporter) -> None:
    async with using(traced):
        with pytest.raises(Refused):
            await inner.options(priority=5000).enqueue(1)

    assert "ERROR" == named(spans, "send inner").status.status_code.name


async def test_without_an_sdk_jobs_get_no_attributes() -> None:
    app = Dibs("memory:")
    trace_app(app, trace.NoOpTracerProvider())
    task = app.task(queue="q")(handlers.refresh)
    async with using(app) as rehearsal:
        ticket = await task.enqueue(1)
        status = await ticket.status()
        await rehearsal.run_due()

        assert {} == status.attributes
        assert "completed" == (await ticket.status()).state


async def test_a_trace_continues_in_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", f"file:{tmp_path}/jobs")
    monkeypatch.setenv("SPANS", str(tmp_path / "spans"))
    from tests.telemetry import traced as other

    async with other.app:
        await other.first.enqueue(1)
        async with asyncio.timeout(60):
            await other.app.work(processes=1, until="empty")
    lines = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    by_name = {line["name"]: line for line in lines}

    assert 1 == len({line["context"]["trace_id"] for line in lines})
    assert 5 == len(lines) == len(by_name)
    assert os.getpid() == by_name["send first"]["process"]
    parents = {
        "process first": "send first",
        "process second": "process first",
        "send third": "process first",
        "process third": "send third",
    }
    for child, parent in parents.items():
        assert by_name[child]["parent_id"] == by_name[parent]["context"]["span_id"], child
        assert by_name[child]["process"] != os.getpid()
    assert "ERROR" == by_name["process third"]["status"]["status_code"]


async def test_a_snooze_is_an_event_of_the_span_and_no_error(spans: InMemorySpanExporter) -> None:
    async with using(traced) as rehearsal:
        await sleepy.enqueue()
        report = await rehearsal.run_due()

        assert 1 == report.queue("sleepy").released
    span = named(spans, "process sleepy")
    assert ["snoozed"] == [event.name for event in span.events]
    assert trace.StatusCode.ERROR != span.status.status_code
