"""The part of @app.lifespan after its yield, and `atexit`, when worker processes end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dibs.app import Dibs
from dibs.worker import run
from tests.worker import closing_app
from tests.worker.closing_app import events
from tests.worker.gate import Gate
from tests.worker.jobs import outcome, wait_for_count
from tests.worker.supervisors import PROGRAM, on_all_storages, script, working

CLOSING_PROGRAM = PROGRAM.replace("tests.worker.apps", "tests.worker.closing_app")
WHOLE_LIFE = ["opened", "closed", "exited"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOSING_LOG", str(tmp_path / "closing"))
    return tmp_path / "closing"


@pytest.fixture
async def app(shared_url: str, gate: Gate, log: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dibs]:
    monkeypatch.setenv("DIBS_URL", shared_url)
    async with closing_app.app as opened:
        yield opened


async def pid_of(app: Dibs, queue: str) -> str:
    return str(json.loads((await outcome(app, queue, "a")).result or b""))


@asynccontextmanager
async def stopped_program(
    app: Dibs, folder: Path, processes: int = 1, **options: object
) -> AsyncIterator[bytes]:
    """Run a job on a thread and one in an isolated process, send SIGTERM; yield standard error at the end."""
    for queue in ("pid", "isolated_pid"):
        await app.queue(queue).enqueue({"args": [], "kwargs": {}}, id="a")
    settings = {"queues": ["pid", "isolated_pid"], "processes": processes, **options}
    async with script(folder, CLOSING_PROGRAM.format(options=settings)) as program:
        for queue in ("pid", "isolated_pid"):
            await wait_for_count(app, queue, "completed")
        program.terminate()
        _, err = await program.communicate()

        assert 0 == program.returncode
        yield err


@on_all_storages
async def test_sigterm_waits_for_the_lifespan_and_calls_atexit(app: Dibs, tmp_path: Path, log: Path) -> None:
    async with stopped_program(app, tmp_path):
        found = events(log)

    assert {await pid_of(app, "pid"), await pid_of(app, "isolated_pid")} == {*found}
    assert [WHOLE_LIFE, WHOLE_LIFE] == list(found.values())


async def test_without_worker_processes_isolated_processes_close_too(
    app: Dibs, tmp_path: Path, log: Path
) -> None:
    async with stopped_program(app, tmp_path, processes=0):
        found = events(log)

    assert [WHOLE_LIFE, WHOLE_LIFE] == list(found.values())


@pytest.mark.parametrize("processes", [0, 1])
async def test_after_the_grace_a_lifespan_is_stopped(
    app: Dibs, tmp_path: Path, log: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSING", "hangs")
    async with stopped_program(app, tmp_path, processes=processes, grace=0.1) as err:
        assert b"@app.lifespan has not ended after its yield" in err


@pytest.mark.parametrize("processes", [0, 1])
async def test_an_error_after_the_yield_is_logged(
    app: Dibs, tmp_path: Path, log: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSING", "fails")
    async with stopped_program(app, tmp_path, processes=processes) as err:
        assert b"the part of @app.lifespan after its yield failed: ValueError: the pool is gone" in err
    assert all(life[-1] == "exited" for life in events(log).values())


async def test_a_process_that_is_replaced_leaves_its_lifespan(app: Dibs, log: Path) -> None:
    """The process is replaced because a handler overran; its job is settled after the process has ended."""
    await app.queue("overruns").enqueue({"args": [], "kwargs": {}}, id="a")
    async with working(app, "overruns") as task:
        report = await task

    assert ("failed", 1) == ((await outcome(app, "overruns", "a")).kind, report.overruns)
    assert WHOLE_LIFE == next(iter(events(log).values()))


async def test_an_empty_queue_ends_the_lifespan(app: Dibs, log: Path) -> None:
    await app.queue("pid").enqueue({"args": [], "kwargs": {}}, id="a")
    await run(app, queues=["pid"], processes=1, until="empty")

    assert [WHOLE_LIFE] == list(events(log).values())


async def test_a_child_process_of_a_job_does_not_delay_the_exit(
    app: Dibs, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At exit, multiprocessing joins the children of a process."""
    await app.queue("child").enqueue({"args": [], "kwargs": {}}, id="a")
    await run(app, queues=["child"], processes=1, until="empty", grace=5)

    assert [WHOLE_LIFE] == list(events(log).values())
    assert "in time" not in caplog.text
