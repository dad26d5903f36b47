"""OpenTelemetry spans: one for each enqueue and one for each run. The run's span is a child of the enqueue's.

The trace context is stored in the attributes of the job (`traceparent` and the other keys of the propagator),
so it reaches the process that runs the job and lasts as long as the job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import msgspec
from attrs import frozen
from msgspec.structs import replace

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, TracerProvider
except ImportError as _error:
    raise ImportError("dibs.telemetry.tracing needs OpenTelemetry: pip install 'dibs[otel]'") from _error

from dibs.app import Dibs
from dibs.client.calls.current_job import CurrentJob
from dibs.client.calls.signals import ParkRun
from dibs.errors import Snooze
from dibs.model.requests import EnqueueRequest, FollowUp, Update
from dibs.version import VERSION

Item = TypeVar("Item", EnqueueRequest, FollowUp)


def trace_app(app: Dibs, provider: TracerProvider | None = None) -> None:
    """Open a span for each enqueue and each run of the app, by `provider` or the global tracer provider.

    Call it in the module that creates the app, because worker processes import this module too. Without a
    configured SDK the spans are not recorded, and jobs get no attributes.
    """
    spans = JobSpans(trace.get_tracer("dibs", VERSION, provider))
    app.middleware(enqueue=spans.open_enqueue_span, run=spans.open_run_span)


@frozen
class JobSpans:
    """The middleware of one app that opens a span for each enqueue and each run."""

    _tracer: trace.Tracer

    @asynccontextmanager
    async def open_enqueue_span(
        self, queue: str, requests: Sequence[EnqueueRequest]
    ) -> AsyncIterator[Sequence[EnqueueRequest]]:
        """Open the span of an enqueue, and add its trace context to the jobs."""
        attributes = messaging_attributes(queue, "send")
        if len(requests) == 1:
            attributes["messaging.message.id"] = requests[0].job.id
        else:
            attributes["messaging.batch.message_count"] = len(requests)
        with self._tracer.start_as_current_span(
            f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            context = current_trace_context()
            yield [add_trace_context(request, context) for request in requests]

    @contextmanager
    def open_run_span(self, job: CurrentJob) -> Iterator[None]:
        """Open the span of a run as a child of the enqueue's span; add its trace context to follow-ups.

        A run that raised Snooze has the event `snoozed`, one that waits for a signal `parked`; neither is an
        error.
        """
        attributes = messaging_attributes(job.queue, "process") | {
            "messaging.message.id": job.id,
            "dibs.attempt": job.attempt,
            "dibs.fence": job.fence,
        }
        parent = propagate.extract(text_attributes(job.attributes))
        origin = trace.get_current_span(parent).get_span_context()
        snoozed: Snooze | ParkRun | None = None
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(origin)] if origin.is_valid else (),
        ) as span:
            try:
                yield
            except (Snooze, ParkRun) as snooze:
                # Raised again after the span, which would record it as an error.
                span.add_event("snoozed" if isinstance(snooze, Snooze) else "parked")
                snoozed = snooze
            finally:
                context = current_trace_context()
                job.follow_ups = tuple(add_trace_context(one, context) for one in job.follow_ups)
                job.failure_follow_ups = tuple(
                    add_trace_context(one, context) for one in job.failure_follow_ups
                )
        if snoozed is not None:
            raise snoozed


def messaging_attributes(queue: str, operation: str) -> dict[str, Any]:
    """Return span attributes by OpenTelemetry's semantic conventions; `operation` is "send" or "process"."""
    return {
        "messaging.system": "dibs",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def current_trace_context() -> dict[str, bytes]:
    """Return the trace context of the current span as job attributes; {} without a configured SDK."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: msgspec.json.encode(text) for name, text in carrier.items()}


def add_trace_context(item: Item, context: Mapping[str, bytes]) -> Item:
    """Return `item` with the trace context in its attributes; attributes of the job take precedence."""
    rule = item.on_conflict
    if not context or (isinstance(rule, Update) and not rule.create):
        # The attributes of an update-only request would replace those of the job that it meets.
        return item
    job = item.job
    data = replace(job.data, attributes={**context, **job.data.attributes})
    return replace(item, job=replace(job, data=data))


def text_attributes(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return only the attributes with text values, as propagators write and read text."""
    return {name: value for name, value in attributes.items() if isinstance(value, str)}
