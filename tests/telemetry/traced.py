"""An app for worker processes. Each process appends its spans to the file that $SPANS names."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from dibs import Dibs, current_job
from dibs.telemetry.tracing import trace_app


class FileExporter(SpanExporter):
    """An exporter that appends each span, with its process id, to the file that $SPANS names."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = [{"process": os.getpid(), **json.loads(span.to_json())} for span in spans]
        with Path(os.environ["SPANS"]).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter()))

app = Dibs()
trace_app(app, provider)


@app.lifespan
async def no_resources() -> AsyncIterator[None]:
    yield


@app.task(queue="first", max_retries=0)
async def first(number: int) -> int:
    current_job().then(second.bind(number))
    await third.enqueue(number)
    return number


@app.task(queue="second")
def second(number: int) -> int:
    return number


@app.task(queue="third", executor="process", max_retries=0)
def third(number: int) -> int:
    raise ValueError(f"no {number}")
