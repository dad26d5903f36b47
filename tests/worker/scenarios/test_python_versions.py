"""Places where versions of Python differ: eager tasks, forks beside threads, and how a loop is made."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dibs import Dibs
from tests.storage_urls import unexpected_lines

APP = """
from dibs import Dibs

app = Dibs()

@app.task(retention="1h")
async def double(number: int) -> int:
    return 2 * number

@app.task(retention="1h", executor="process")
def half(number: int) -> int:
    return number // 2
"""
PROGRAM = """
import asyncio
from apps import app, double, half

async def main():
    async with app:
        tickets = [await double.enqueue(21), await half.enqueue(84)]
        print([await ticket.result(wait=60) for ticket in tickets])

if __name__ == "__main__":
    asyncio.run(main())
"""


async def times_two(number: int) -> int:
    return 2 * number


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks since Python 3.12")
async def test_calls_and_a_worker_on_a_loop_with_eager_tasks(any_url: str) -> None:
    """An eager task runs at once until its first wait, so a call may end before its task is known."""
    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    name = f"q-{os.urandom(6).hex()}"
    async with Dibs(any_url) as app:
        double = app.task(queue=name, retention="1h")(times_two)
        tickets = await asyncio.gather(*(double.enqueue(number) for number in range(50)))
        many = await double.enqueue_many([double.bind(number) for number in range(50, 100)])
        waits = [asyncio.create_task(ticket.result(wait=60)) for ticket in [*tickets, *many]]
        await app.work(until="empty", handle_signals=False)

        assert [2 * number for number in range(100)] == await asyncio.gather(*waits)


def test_a_worker_with_processes_raises_no_warning_of_a_later_python(tmp_path: Path) -> None:
    """Since Python 3.12 a fork beside threads is a DeprecationWarning, and later versions deprecate more."""
    (tmp_path / "apps.py").write_text(APP, "utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    environ = os.environ | {"DIBS_URL": "file:./jobs", "PYTHONWARNINGS": "error::DeprecationWarning"}
    pipe = subprocess.PIPE
    worker = [sys.executable, "-m", "dibs", "worker", "apps:app", "--processes", "2"]
    with subprocess.Popen(worker, cwd=tmp_path, env=environ, stdout=pipe, stderr=pipe, text=True) as process:
        program = [sys.executable, "program.py"]
        done = subprocess.run(program, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert (0, "[42, 42]\n", "") == (done.returncode, done.stdout, done.stderr)
    assert [] == [line for line in unexpected_lines(errors) if "Warning" in line or "Error" in line]
    assert 0 == process.returncode
