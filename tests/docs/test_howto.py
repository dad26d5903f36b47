"""The how-to pages: their tests pass, and their blocks print the output that the page shows."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from tests.cli.shell import Shell
from tests.docs.pages import DOCS, OUTPUT, Page, run_block
from tests.worker.jobs import wait_for_count

#: The pytest.ini of a user's project, in which pytest-asyncio runs async tests.
INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in (DOCS / "howto").glob("*.md")
    if not path.name.startswith("coming_from")
)


def page_test_files(name: str) -> list[str]:
    return [block.title for block in Page(name).files if block.title.startswith("test_")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pytest.ini").write_text(INI)
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PAGES if page_test_files(name)])
def test_the_tests_on_the_page_pass(name: str, project: Path) -> None:
    Page(name).save(project)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *page_test_files(name)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)

    assert 0 == ran.returncode, ran.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", ["README.md", *(name for name in PAGES if Page(name).python_blocks)])
async def test_every_block_prints_its_output(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Page(name).save(project)
    importlib.invalidate_caches()
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in Page(name).python_blocks:
        await run_block(block.text, names)

        assert OUTPUT.findall(block.text) == capsys.readouterr().out.splitlines()
    for words in Page(name).commands():
        result = await asyncio.to_thread(Shell(project).type, *words)
        assert (0, "") == (result.exit_code, result.stderr)


#: A small notebook kernel: it runs cells one after another, on an event loop that runs all the time.
NOTEBOOK = """
import asyncio, json, sys
from IPython.core.interactiveshell import InteractiveShell

async def main():
    shell = InteractiveShell.instance()
    for cell in json.loads(sys.argv[1]):
        code = shell.transform_cell(cell)
        (await shell.run_cell_async(cell, store_history=True, transformed_cell=code)).raise_error()

asyncio.run(main())
"""


def test_the_cells_of_a_notebook_print_their_output(project: Path) -> None:
    cells = [block.text for block in Page("howto/notebook.md").files]
    command = [sys.executable, "-W", "ignore", "-c", NOTEBOOK, json.dumps(cells)]
    env = {**os.environ, "IPYTHONDIR": str(project / "ipython")}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000, env=env)
    printed = [re.sub(r"^Out\[\d+\]: ", "", line) for line in ran.stdout.splitlines() if line]

    assert [line for cell in cells for line in OUTPUT.findall(cell)] == printed, ran.stderr


async def test_the_log_line_of_the_page_is_current(project: Path) -> None:
    page = Page("howto/observability.md")
    page.save(project)
    (shown,) = (block.text for block in page.blocks if block.language == "json")
    program = (
        "import asyncio, shop; shop.pay.sync.options(id='7').enqueue(7); shop.app.sync.work(until='empty')"
    )
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=3000,
    )
    (line,) = (line for line in map(json.loads, ran.stderr.splitlines()) if line["logger"] == "shop")
    wanted = json.loads(shown)

    assert list(wanted) == list(line)
    changing = {"time": line["time"], "fence": line["fence"]}
    assert wanted | changing == line


@pytest.mark.parametrize("name", ["howto/observability.md", "howto/run_workers.md", "reference/cli.md"])
def test_programs_on_the_pages_can_be_imported(name: str, project: Path) -> None:
    page = Page(name)
    modules = [
        file.removesuffix(".py").replace("/", ".") for file in page.save(project) if file.endswith(".py")
    ]
    ran = subprocess.run(
        [sys.executable, "-c", f"import {', '.join(modules)}"], capture_output=True, text=True, check=False
    )

    assert (0, "") == (ran.returncode, ran.stderr)


async def send(to: str, subject: str) -> None: ...


async def test_the_warning_about_a_payload_that_does_not_fit_is_current(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (shown,) = (block.text for block in Page("howto/change_a_task.md").blocks if block.language == "text")
    app = Dibs("memory:")
    app.task(queue="mail.send")(send)
    async with app:
        job = NewJob(id="01K", data=JobData(payload=b'{"args":["ada"]}'))
        await app.storage.enqueue("mail.send", [EnqueueRequest(job=job)])
        work = asyncio.create_task(app.work(processes=0, handle_signals=False))
        await wait_for_count(app, "mail.send", "scheduled")
        app.stop(grace=0)
        await work
    (warned,) = (record.getMessage() for record in caplog.records if "PayloadMismatch" in record.getMessage())

    moment = r"\S+ \S+ UTC$"
    assert re.sub(moment, "", shown.strip()) == re.sub(moment, "", warned)
