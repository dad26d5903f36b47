"""The tutorial does what it says: its blocks run in order, as typed by a reader, and print what it shows.

As it is written; and on each storage, chosen by DIBS_URL alone, once its files leave the URL out.
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
from tests.docs.pages import SHOWN, Page, type_in
from tests.storage_urls import new_url, unexpected_lines

PAGE = Page("tutorial/ten-minutes.md")
URL = "file:./jobs"
#: What a test has no business doing.
NOT_TYPED = ["demo"]
AS_WRITTEN = "as written"


def commands(*, as_written: bool = True) -> Iterator[list[str]]:
    """What is typed at the shell, as words after `dibs`."""
    for words in PAGE.commands():
        if words != NOT_TYPED:
            yield words if as_written else [word for word in words if word not in ("--url", URL)]


@pytest.fixture(params=[AS_WRITTEN, "memory", "file", "redis", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Save the files where the reader stands; the URL that counts."""
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
    PAGE.forget()


async def test_every_block_prints_what_it_shows(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.invalidate_caches()
    names: dict[str, Any] = {}
    for block in PAGE.typed:
        await type_in(block.text, names)

        assert SHOWN.findall(block.text) == capsys.readouterr().out.splitlines()
    await names["app"].close()

    if url.startswith("memory:"):
        return
    for words in commands(as_written=url == URL):
        # On a thread: a verb runs an event loop of its own.
        result = await asyncio.to_thread(partial(Shell(Path.cwd()).type, *words, url=url))
        assert (0, []) == (result.exit_code, unexpected_lines(result.stderr))


def test_the_program_without_async_prints_what_it_shows(url: str) -> None:
    (program,) = (block for block in PAGE.files if block.title == "plain.py")
    done = subprocess.run(
        [sys.executable, program.title], capture_output=True, text=True, check=False, timeout=300
    )

    assert (0, []) == (done.returncode, unexpected_lines(done.stderr))
    assert SHOWN.findall(program.text) == done.stdout.splitlines()


def test_nothing_is_left_out() -> None:
    assert ["mail.py", "plain.py"] == [block.title for block in PAGE.files]
    assert len(PAGE.typed) >= 8
    assert len(list(commands())) >= 5
