"""The tutorial: its blocks run in order and print the output that it shows.

They run as written, and on each storage in DIBS_URL after the URL is removed from the files.
"""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.docs.pages import OUTPUT, Page, run_block
from tests.storage_urls import new_url, unexpected_lines

PAGE = Page("tutorial/ten-minutes.md")
URL = "file:./jobs"
#: `dibs demo`, which tests/cli/test_demo.py runs.
SKIPPED = ["demo"]
AS_WRITTEN = "as written"


def commands(*, as_written: bool = True) -> Iterator[list[str]]:
    """Yield the arguments of each `dibs` command."""
    for words in PAGE.commands():
        if words != SKIPPED:
            yield words if as_written else [word for word in words if word not in ("--url", URL)]


@pytest.fixture(params=[AS_WRITTEN, "memory", "file", "redis", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Save the files in the current directory, and yield the URL of the storage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if request.param == AS_WRITTEN:
        PAGE.save(tmp_path)
        yield URL
    else:
        PAGE.save(tmp_path, **{f'Dibs("{URL}")': "Dibs()"})
        url = new_url(request.param, request)
        monkeypatch.setenv("DIBS_URL", url)
        yield url
    PAGE.unload()


async def test_every_block_prints_its_output(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.invalidate_caches()
    names: dict[str, Any] = {}
    for block in PAGE.python_blocks:
        await run_block(block.text, names)

        assert OUTPUT.findall(block.text) == capsys.readouterr().out.splitlines()
    await names["app"].close()

    if url.startswith("memory:"):
        return
    for words in commands(as_written=url == URL):
        # On a thread, because a command runs its own event loop.
        result = await asyncio.to_thread(partial(Shell(Path.cwd()).type, *words, url=url))
        assert (0, []) == (result.exit_code, unexpected_lines(result.stderr))


def test_the_program_without_async_prints_its_output(url: str) -> None:
    (program,) = (block for block in PAGE.files if block.title == "plain.py")
    done = subprocess.run(
        [sys.executable, program.title], capture_output=True, text=True, check=False, timeout=300
    )

    assert (0, []) == (done.returncode, unexpected_lines(done.stderr))
    assert OUTPUT.findall(program.text) == done.stdout.splitlines()


def test_all_files_blocks_and_commands_are_found() -> None:
    assert ["mail.py", "plain.py"] == [block.title for block in PAGE.files]
    assert len(PAGE.python_blocks) >= 8
    assert len(list(commands())) >= 5
