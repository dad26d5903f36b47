"""Without telemetry dibs imports no telemetry package; a missing package raises an error with its extra."""

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
