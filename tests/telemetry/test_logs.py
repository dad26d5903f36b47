"""Log records carry the queue, id, attempt and fence of their run, also as JSON lines."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, current_job
from dibs.telemetry import logs
from dibs.testing import using
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("shop")
app = Dibs("memory:")


@app.task(queue="send", max_retries=0)
async def send(to: str) -> None:
    logger.info("sending to %s", to, extra={"size": 3})


@app.task(queue="plain")
def plain() -> int:
    logger.warning("on a thread")
    return current_job().fence


@app.task(queue="broken", max_retries=0)
def broken() -> None:
    try:
        int("no")
    except ValueError:
        logger.exception("broke")
        raise


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    stream, level = io.StringIO(), root.level
    handler = logs.setup_json_logging(stream=stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_a_record_of_a_handler_carries_its_run(output: io.StringIO) -> None:
    async with using(app) as rehearsal:
        await send.options(id="a").enqueue("ada")
        await rehearsal.run_due()
    (line,) = (line for line in lines(output) if line["logger"] == "shop")

    assert ("send", "a", 1, 3) == (line["queue"], line["id"], line["attempt"], line["size"])
    assert ("INFO", "sending to ada") == (line["level"], line["message"])
    assert line["fence"] > 0
    assert line["time"].endswith("Z")


async def test_a_record_of_a_handler_on_a_thread_carries_its_run(output: io.StringIO) -> None:
    async with using(app) as rehearsal:
        ticket = await plain.enqueue()
        await rehearsal.run_due()
        fence = await ticket.result(wait=0)
    (line,) = (line for line in lines(output) if line["logger"] == "shop")

    assert (fence, ticket.id) == (line["fence"], line["id"])


async def test_an_exception_is_part_of_the_json_line(output: io.StringIO) -> None:
    async with using(app) as rehearsal:
        await broken.enqueue()
        await rehearsal.run_due()
    (line,) = (line for line in lines(output) if line["message"] == "broke")

    assert line["error"].endswith("'no'")


def test_a_record_outside_a_run_has_no_job_attributes(output: io.StringIO) -> None:
    logger.info("started")

    assert {"time", "level", "logger", "message"} == set(lines(output)[0])


def test_a_format_may_use_the_job_attributes_outside_a_run() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("[%(queue)s/%(id)s] %(message)s"))
    handler.addFilter(logs.JobContextFilter())
    handler.handle(logger.makeRecord("shop", logging.INFO, "f", 1, "hello", (), None))

    assert "[/] hello\n" == stream.getvalue()


def test_a_second_setup_adds_no_second_handler(output: io.StringIO) -> None:
    logs.setup_json_logging(logging.WARNING, output)
    logger.info("too little")
    logger.warning("once")

    assert ["once"] == [line["message"] for line in lines(output)]


def test_a_value_without_json_form_is_written_as_text(output: io.StringIO) -> None:
    logger.info("odd", extra={"what": object})

    assert "<class 'object'>" == lines(output)[0]["what"]


async def test_a_record_of_the_worker_carries_its_run(output: io.StringIO) -> None:
    async with app:
        await broken.options(id="b").enqueue()
        await app.work(until="empty")
    (line,) = (line for line in lines(output) if line["logger"] == "dibs.worker")

    assert line["message"].startswith("broken/b: failed: ValueError: ")
    assert ("broken", "b", 1) == (line["queue"], line["id"], line["attempt"])
    assert line["fence"] > 0


async def test_the_worker_builds_no_extra_for_a_disabled_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(_: Invocation) -> dict[str, Any]:
        raise AssertionError("the record is disabled")

    monkeypatch.setattr(Invocation, "log_fields", property(built))
    monkeypatch.setattr(logging.getLogger("dibs.worker"), "level", logging.WARNING)
    async with app:
        first, second = await broken.enqueue(), await plain.enqueue()
        await app.work(until="empty")

        assert ("failed", "completed") == ((await first.status()).state, (await second.status()).state)


# -- Without telemetry dibs imports no telemetry package; a missing package raises an error with its extra


PROGRAM = """
import asyncio, sys
from dibs import Dibs, current_job
from tests.client import handlers

app = Dibs("memory:")
task = app.task(queue="q")(handlers.thumbnail)

async def main():
    async with app:
        ticket = await task.enqueue("a.png")
        print((await ticket.status()).attributes)
        await app.work(until="empty")
        print((await ticket.status()).state)

asyncio.run(main())
print([name for name in ("dibs.telemetry", "opentelemetry", "prometheus_client") if name in sys.modules])
print(app._storage_handle.enqueue_middleware, app.handlers["q"].middleware)
"""
ROOT = Path(__file__).parent.parent.parent


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_without_telemetry_no_module_attribute_or_middleware_is_added() -> None:
    assert "{}\ncompleted\n[]\nNone None\n" == run(PROGRAM).stdout


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("metrics", "prometheus_client", "dibs[metrics]"),
        ("storage_metrics", "prometheus_client", "dibs[metrics]"),
        ("tracing", "opentelemetry", "dibs[otel]"),
    ],
)
def test_the_error_for_a_missing_package_names_the_extra(module: str, package: str, extra: str) -> None:
    process = run(f"import sys; sys.modules[{package!r}] = None; import dibs.telemetry.{module}")

    assert 1 == process.returncode
    assert f"pip install '{extra}'" in process.stderr
