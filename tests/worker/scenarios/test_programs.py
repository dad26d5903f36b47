"""Programs with worker processes: how they stop, and their errors when they cannot start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dibs.app import Dibs
from dibs.errors import ConfigurationError
from dibs.worker import run
from tests.worker import apps
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import add, current, put, request
from tests.worker.supervisors import script, wait_for_log

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


async def test_after_the_grace_processes_are_killed_and_their_jobs_released(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    await put(app, "held", "a")
    async with script(tmp_path, SCRIPT.format(grace=0.1)) as program:
        pid = await gate.arrived("a")
        program.terminate()
        await program.communicate()

    await wait_for_exit(pid)
    assert 0 == (await current(app, "held", "a")).attempts


async def test_processes_use_the_log_configuration_of_their_supervisor(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    await put(app, "held", request("a", "too", "many"))
    text = SCRIPT.replace("level=logging.INFO", "level=logging.INFO, format='custom: %(message)s'")
    async with script(tmp_path, text.format(grace=0)) as program:
        # The first line may be a warning about a server that is not durable.
        line = await wait_for_log(program, "held/a")
        program.terminate()

    assert line.startswith(
        "custom: held/a: TypeError: held() takes 0 positional arguments but 2 were given; retry 1"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process that holds its GIL")
async def test_a_process_that_holds_the_gil_ends_with_its_supervisor(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    await put(app, "gil", "a")
    async with script(tmp_path, SCRIPT.format(grace=60).replace('"held"', '"gil"')) as program:
        pid = await gate.arrived("a")
        await gate.release("a")
        program.kill()
        await wait_for_exit(pid)


async def test_a_missing_main_guard_is_explained_once(tmp_path: Path, app: Dibs) -> None:
    text = "\n".join(line.removeprefix("    ") for line in SCRIPT.splitlines() if "__main__" not in line)
    async with script(tmp_path, text.format(grace=1)) as program:
        _, err = await program.communicate()

    assert 1 == program.returncode
    assert 1 == err.count(b"if __name__ ==")
    assert 1 == err.count(b"Traceback")


async def test_a_lifespan_that_raises_is_one_clear_error(app: Dibs, tmp_path: Path) -> None:
    async with apps.broken_app as broken:
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


async def test_a_handler_that_worker_processes_lack_is_one_clear_error(app: Dibs) -> None:
    add(app, "late", apps.echo)
    try:
        with pytest.raises(ConfigurationError, match="has no handler for late"):
            await run(app, queues=["late"], processes=1)
    finally:
        del app.handlers["late"]


async def test_isolated_processes_end_with_their_supervisor(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    await put(app, "alone", "a")
    async with script(tmp_path, SCRIPT.format(grace=60).replace('"held"', '"alone"')) as program:
        pid = await gate.arrived("a")
        program.kill()
        await wait_for_exit(pid)

    assert (await current(app, "alone", "a")).run is not None
