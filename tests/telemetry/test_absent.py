"""Whoever wants no telemetry pays nothing for it; whoever wants it without its extra is told which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_nothing_is_imported_added_or_called() -> None:
    assert "{}\ncompleted\n[]\nNone None\n" == run(PROGRAM).stdout


@pytest.mark.parametrize(
    ("module", "needed", "extra"),
    [("metrics", "prometheus_client", "dibs[metrics]"), ("tracing", "opentelemetry", "dibs[otel]")],
)
def test_a_missing_extra_is_named(module: str, needed: str, extra: str) -> None:
    ran = run(f"import sys; sys.modules[{needed!r}] = None; import dibs.telemetry.{module}")

    assert 1 == ran.returncode
    assert f"pip install '{extra}'" in ran.stderr
