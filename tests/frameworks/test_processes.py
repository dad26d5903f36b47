"""Programs that use one app in several processes, threads and event loops."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.source import PROJECT
from tests.storage_urls import unexpected_lines

START = """
import asyncio, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from tests.frameworks.apps.jobs import app, doubled

ask = doubled.sync.enqueue_and_wait

async def ask_many(numbers):
    return await asyncio.gather(*map(doubled.enqueue_and_wait, numbers))
"""

THREADS = """
with ThreadPoolExecutor(8) as threads:
    print(sum(threads.map(ask, range(40))))
"""

#: Event loops of several threads at once, beside blocking calls.
LOOPS = """
with ThreadPoolExecutor(8) as threads:
    loops = [threads.submit(lambda: asyncio.run(ask_many(range(10)))) for _ in range(4)]
    calls = [threads.submit(ask, n) for n in range(10)]
    print(sum(sum(one.result()) for one in loops), sum(one.result() for one in calls))
"""

UVLOOP = """
import uvloop
print(sum(uvloop.run(ask_many(range(20)))), ask(1), sum(uvloop.run(ask_many(range(20)))))
"""

#: Processes that os.fork starts after the parent has used the app, as Celery's prefork pool does.
PREFORK = """
print(ask(1), flush=True)
children = []
for n in range(4):
    child = os.fork()
    if child == 0:
        os._exit(0 if (ask(n), asyncio.run(ask_many([n]))) == (2 * n, [2 * n]) else 1)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], ask(2))
"""

MULTIPROCESSING = """
import multiprocessing

def ask_in_child(n):
    return ask(n)

if __name__ == "__main__":
    print(ask(1), flush=True)
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        print(sum(pool.map(ask_in_child, range(10))))
        pool.close()
        pool.join()
"""

#: IPython runs a cell with `await` on an event loop of its own, as Jupyter does.
IPYTHON = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
for cell in ("print(await doubled.enqueue_and_wait(1))", "print(sum(await ask_many(range(10))))"):
    shell.user_ns.update(doubled=doubled, ask_many=ask_many)
    shell.run_cell(cell).raise_error()
print(ask(2))
"""

END = """
if __name__ == "__main__":
    app.sync.close()
"""

#: Program -> its source, and the lines that it prints.
PROGRAMS = {
    "threads": (THREADS, ["1560"]),
    "loops": (LOOPS, ["360 90"]),
    "uvloop": (UVLOOP, ["380 2 380"]),
    "prefork": (PREFORK, ["2", "[0, 0, 0, 0] 4"]),
    "multiprocessing fork": (MULTIPROCESSING.replace("{method}", "fork"), ["2", "90"]),
    "multiprocessing spawn": (MULTIPROCESSING.replace("{method}", "spawn"), ["2", "90"]),
    "multiprocessing forkserver": (MULTIPROCESSING.replace("{method}", "forkserver"), ["2", "90"]),
    "ipython": (IPYTHON, ["2", "90", "4"]),
}


#: Cases that only `nox -s chaos` runs, because another case uses the same code of dibs.
LONG = ("multiprocessing forkserver", "asyncio class", "asyncio module", "asyncio package")


def cases(table: Mapping[str, tuple[str, list[str]]]) -> list[Any]:
    return [
        pytest.param(*values, id=name, marks=pytest.mark.chaos if name in LONG else ())
        for name, values in table.items()
    ]


@pytest.mark.parametrize(("source", "printed"), cases(PROGRAMS))
def test_a_program_uses_one_app(worked_url: str, source: str, printed: list[str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(START + source + END, "utf-8")
    paths = os.pathsep.join(map(str, (PROJECT, PROJECT / "src")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(program)],
        env={**os.environ, "DIBS_URL": worked_url, "PYTHONPATH": paths, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (printed, []) == (done.stdout.splitlines(), unexpected_lines(done.stderr))


#: Tests of a user, on event loops of each scope, with one app for all of them.
USER_TESTS = """
import pytest
from tests.frameworks.apps.jobs import app, doubled

async def ask():
    assert 6 == await doubled.enqueue_and_wait(3)
    async with app:
        assert 8 == await doubled.enqueue_and_wait(4)

@pytest.mark.asyncio(loop_scope="{scope}")
async def test_first():
    await ask()

@pytest.mark.asyncio(loop_scope="{scope}")
async def test_second():
    await app.open()
    await ask()
    await app.close()

def test_blocking():
    with app.sync:
        assert 10 == doubled.sync.enqueue_and_wait(5)
"""
ANYIO_INI = "[pytest]\nfilterwarnings = error\n"
INI = ANYIO_INI + "asyncio_default_fixture_loop_scope = function\n"
ANYIO_TESTS = USER_TESTS.replace('asyncio(loop_scope="{scope}")', "anyio")
PLUGINS = {
    **{
        f"asyncio {scope}": (USER_TESTS.replace("{scope}", scope), ["-p", "pytest_asyncio.plugin"])
        for scope in ("function", "class", "module", "package", "session")
    },
    "xdist": (
        USER_TESTS.replace("{scope}", "function"),
        ["-p", "pytest_asyncio.plugin", "-p", "xdist", "-n", "2"],
    ),
    "anyio": (
        ANYIO_TESTS + "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n",
        ["-p", "anyio.pytest_plugin"],
    ),
}


@pytest.mark.parametrize(("source", "words"), cases(PLUGINS))
def test_async_tests_of_a_user_pass(worked_url: str, source: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(source, "utf-8")
    (tmp_path / "pytest.ini").write_text(INI if "mark.asyncio" in source else ANYIO_INI, "utf-8")
    paths = os.pathsep.join(map(str, (PROJECT, PROJECT / "src")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=tmp_path,
        env={
            **os.environ,
            "DIBS_URL": worked_url,
            "PYTHONPATH": paths,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert "3 passed" in done.stdout, done.stdout + done.stderr
