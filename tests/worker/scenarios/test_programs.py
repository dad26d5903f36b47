"""Programs of their own that work in processes: how they stop, and what they say when they cannot start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dibs.client.app import Dibs
from dibs.errors import ConfigurationError
from dibs.worker import run
from tests.worker import apps
from tests.worker.fleet import said, script
from tests.worker.workshop import Gate, add, current, ends, put, request

APPS = "tests.worker.apps"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


SCRIPT = """
import asyncio, logging
from tests.worker.apps import app
from dibs.worker import run

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    report = asyncio.run(run(app, queues=["held"], processes=2, grace={grace}))
    print(report.total("completed"), report.total("released"))
"""


async def test_after_the_grace_processes_are_ended_and_their_jobs_released(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    await put(app, "held", "a")
    async with script(tmp_path, SCRIPT.format(grace=0.1)) as program:
        pid = await gate.arrived("a")
        program.terminate()
        await program.communicate()

    await ends(pid)
    assert 0 == (await current(app, "held", "a")).attempts


async def test_processes_log_as_their_supervisor_does(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    await put(app, "held", request("a", "too", "many"))
    text = SCRIPT.replace("level=logging.INFO", "level=logging.INFO, format='told: %(message)s'")
    async with script(tmp_path, text.format(grace=0)) as program:
        # A server that is not durable is told of first.
        line = await said(program, "held/a")
        program.terminate()

    assert line.startswith("told: held/a: Retry: TypeError: ")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process that holds its interpreter")
async def test_so_does_one_that_holds_its_interpreter(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    await put(app, "gil", "a")
    async with script(tmp_path, SCRIPT.format(grace=60).replace('"held"', '"gil"')) as program:
        pid = await gate.arrived("a")
        await gate.let_go("a")
        program.kill()
        await ends(pid)


async def test_a_missing_guard_is_explained_once(tmp_path: Path, app: Dibs) -> None:
    text = "\n".join(line.removeprefix("    ") for line in SCRIPT.splitlines() if "__main__" not in line)
    async with script(tmp_path, text.format(grace=1)) as program:
        _, err = await program.communicate()

    assert 1 == program.returncode
    assert 1 == err.count(b"if __name__ ==")
    assert 1 == err.count(b"Traceback")


async def test_a_lifespan_that_cannot_start_is_one_clear_error(app: Dibs, tmp_path: Path) -> None:
    async with apps.broken as broken:
        with pytest.raises(ConfigurationError, match="no number"):
            await run(broken, processes=2)


async def test_an_application_that_cannot_be_found_is_one_clear_error(app: Dibs) -> None:
    with pytest.raises(ConfigurationError, match="no application 'nowhere'"):
        await run(app, processes=2, reference=f"{APPS}:nowhere")


async def test_an_application_in_no_module_is_refused(tmp_path: Path) -> None:
    async with Dibs(f"file:{tmp_path / 'jobs'}") as hidden:
        add(hidden, "echo", apps.echo)
        with pytest.raises(ConfigurationError, match="bind it at the top of a module"):
            await run(hidden, processes=1)


async def test_a_handler_made_elsewhere_is_one_clear_error(app: Dibs) -> None:
    add(app, "late", apps.echo)
    try:
        with pytest.raises(ConfigurationError, match="has no handler for late"):
            await run(app, queues=["late"], processes=1)
    finally:
        del app.handlers["late"]


async def test_what_a_worker_process_started_ends_as_well(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    await put(app, "alone", "a")
    async with script(tmp_path, SCRIPT.format(grace=60).replace('"held"', '"alone"')) as program:
        pid = await gate.arrived("a")
        program.kill()
        await ends(pid)

    assert (await current(app, "alone", "a")).run is not None
