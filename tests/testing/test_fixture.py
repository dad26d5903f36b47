"""The pytest fixture `rehearsal`, in a project that has only dibs and pytest."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.testing import Rehearsal, using

INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""
CONFTEST = """
import pytest
from dibs import Dibs

app = Dibs("file:./never-made")
done = []

@app.task(queue="send", max_retries=1)
def send(to: str) -> str:
    done.append(to)
    if "@" not in to:
        raise ValueError(to)
    return to.upper()

@pytest.fixture
def dibs_app():
    return app
"""
PLAIN = """
from conftest import done, send

def test_a_mail(rehearsal):
    ticket = send.sync.options(delay=60).enqueue("ada@example.org")
    rehearsal.sync.run_until_empty()
    assert ticket.result(wait=0) == "ADA@EXAMPLE.ORG"

def test_the_next_test_starts_empty(rehearsal):
    assert rehearsal.sync.run_until_empty().total("claimed") == 0
"""
ASYNC = """
from conftest import send

async def test_a_mail(rehearsal):
    ticket = await send.enqueue("ada@example.org")
    await rehearsal.run_until_empty()
    assert await ticket.result(wait=0) == "ADA@EXAMPLE.ORG"
"""


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(INI)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


@pytest.mark.long
def test_plain_and_async_tests_can_use_the_fixture(project: Path) -> None:
    (project / "test_plain.py").write_text(PLAIN)
    (project / "test_async.py").write_text(ASYNC)
    ran = pytest_in(project)

    assert "3 passed" in ran.stdout, ran.stdout
    assert not (project / "never-made").exists()


@pytest.mark.long
def test_without_dibs_app_the_error_names_the_fixture_to_define(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text("def test_it(rehearsal): pass")
    ran = pytest_in(tmp_path)

    assert "define a fixture `dibs_app` that returns your app" in ran.stdout


def test_loading_the_plugin_imports_only_pytest() -> None:
    program = (
        "import sys, dibs_testing; print([n for n in ('dibs', 'hypothesis', 'redis') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[]" == ran.stdout.strip()


# -- Rehearsals with threads=False: handlers run on the thread of the test ---------------------------


app = Dibs("memory:")
ran: list[str] = []
#: Data of one thread, as the transaction of a Django test is.
local = threading.local()


@app.task
def read(name: str) -> str:
    ran.append(name)
    return str(getattr(local, "value", "nothing"))


@app.task
def read_by_another_job() -> str:
    return read.sync.enqueue_and_wait("inner")


@app.task
async def wait_for_a_job() -> str:
    return await read.enqueue_and_wait("inner")


@app.task
def fail() -> None:
    raise SystemExit


@pytest.fixture
def one_thread() -> Iterator[Rehearsal]:
    ran.clear()
    local.value = "mine"
    with using(app, threads=False) as rehearsal:
        yield rehearsal


def test_handlers_see_the_data_of_the_thread(one_thread: Rehearsal) -> None:
    tickets = [read.sync.enqueue(f"{number}") for number in range(20)]

    assert 20 == one_thread.sync.run_due().total("completed")
    assert ["mine"] * 20 == [ticket.result(wait=0) for ticket in tickets]


def test_without_it_they_do_not() -> None:
    local.value = "mine"
    with using(app) as rehearsal:
        ticket = read.sync.enqueue("a")
        rehearsal.sync.run_due()

        assert "nothing" == ticket.result(wait=0)


def test_a_handler_may_wait_for_another_job(one_thread: Rehearsal) -> None:
    tickets = [read_by_another_job.sync.enqueue() for _ in range(5)]
    one_thread.sync.run_until_empty()

    assert ["mine"] * 5 == [ticket.result(wait=0) for ticket in tickets]


def test_an_async_handler_may_wait_for_a_job_on_the_thread(one_thread: Rehearsal) -> None:
    ticket = wait_for_a_job.sync.enqueue()
    one_thread.sync.run_due()

    assert "mine" == ticket.result(wait=0)


def test_inline_jobs_run_on_the_thread() -> None:
    local.value = "mine"
    with using(app, inline=True, threads=False):
        assert "mine" == read.sync.enqueue("a").result(wait=0)


def test_other_threads_may_enqueue(one_thread: Rehearsal) -> None:
    thread = threading.Thread(target=lambda: read.sync.enqueue("a"))
    thread.start()
    thread.join()

    assert 1 == one_thread.sync.run_due().total("completed")


async def test_async_tests_run_handlers_on_threads() -> None:
    local.value = "mine"
    async with using(app, threads=False) as rehearsal:
        ticket = await read.enqueue("a")
        await rehearsal.run_due()

        assert "nothing" == await ticket.result(wait=0)


def test_an_error_of_a_handler_is_retried(one_thread: Rehearsal) -> None:
    fail.sync.enqueue()

    assert 1 == one_thread.sync.run_due().total("retried")
