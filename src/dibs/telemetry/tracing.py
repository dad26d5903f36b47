"""Spans for OpenTelemetry: one for each enqueue, one for each run, and the run's leads back to its enqueue.

The context travels as attributes of the job (`traceparent` and what else the propagator writes), so it
reaches whatever process runs it, and survives what the job survives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, TracerProvider
except ImportError as error:
    raise ImportError("dibs.telemetry.tracing needs OpenTelemetry: pip install 'dibs[otel]'") from error

from dibs.client.app import Dibs
from dibs.client.calls.current_job import CurrentJob
from dibs.model.requests import EnqueueRequest, FollowUp
from dibs.version import VERSION

Item = TypeVar("Item", EnqueueRequest, FollowUp)


def trace_app(app: Dibs, provider: TracerProvider | None = None) -> None:
    """Let an app open spans, by this provider, else by the one that is set globally.

    Say it where the app is made: worker processes import that module, too. Where no SDK is configured,
    spans record nothing and no attribute is added to jobs.
    """
    spans = Spans(trace.get_tracer("dibs", VERSION, provider))
    app.middleware(enqueue=spans.enqueue, run=spans.run)


class Spans:
    """The two spans of a job."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @asynccontextmanager
    async def enqueue(self, queue: str, requests: Sequence[EnqueueRequest]) -> AsyncIterator[Sequence[EnqueueRequest]]:
        """Open the span of an enqueue, and send its context along."""
        about = described(queue, "send")
        if len(requests) == 1:
            about["messaging.message.id"] = requests[0].job.id
        else:
            about["messaging.batch.message_count"] = len(requests)
        with self._tracer.start_as_current_span(f"send {queue}", kind=SpanKind.PRODUCER, attributes=about):
            carried = context_here()
            yield [carrying(request, carried) for request in requests]

    @contextmanager
    def run(self, job: CurrentJob) -> Iterator[None]:
        """Open the span of a run, below that of its enqueue and linked to it; follow-ups continue it."""
        about = described(job.queue, "process") | {
            "messaging.message.id": job.id,
            "dibs.attempt": job.attempt,
            "dibs.fence": job.fence,
        }
        sent = propagate.extract(texts(job.attributes))
        origin = trace.get_current_span(sent).get_span_context()
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=sent,
            kind=SpanKind.CONSUMER,
            attributes=about,
            links=[Link(origin)] if origin.is_valid else (),
        ):
            yield
            carried = context_here()
            job.follow_ups = tuple(carrying(then, carried) for then in job.follow_ups)


def described(queue: str, operation: str) -> dict[str, Any]:
    """Return what OpenTelemetry's conventions for messaging want to know."""
    return {
        "messaging.system": "dibs",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def context_here() -> dict[str, bytes]:
    """Return the context of the current span as attributes; nothing where nothing is recorded."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: msgspec.json.encode(text) for name, text in carrier.items()}


def carrying(item: Item, carried: Mapping[str, bytes]) -> Item:
    """Return a job to be, with the context; what it says itself under these names counts."""
    if not carried:
        return item
    job = item.job
    data = replace(job.data, attributes={**carried, **job.data.attributes})
    return replace(item, job=replace(job, data=data))


def texts(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return those attributes that are text: what a propagator may have written."""
    return {name: value for name, value in attributes.items() if isinstance(value, str)}
