"""The pytest fixture `rehearsal`, in a project that has only dibs and pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
