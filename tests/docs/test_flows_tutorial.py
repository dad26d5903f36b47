"""The tutorial on flows: its blocks run in the order of the page and print the output that it shows."""

from __future__ import annotations

import asyncio
import importlib
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.docs.pages import OUTPUT, Block, Page, run_block

PAGE = Page("tutorial/flows.md")
#: The part of the id of a node that differs from run to run.
STAMP = re.compile(r"/[0-9a-z]{10}/")


async def run_command(block: Block) -> tuple[list[str], list[str]]:
    """Run the command of a block. Return its output and that of the page, without stamps."""
    first, _, shown = block.text.partition("\n")
    words = shlex.split(first.removeprefix("$ dibs "))
    result = await asyncio.to_thread(partial(Shell(Path.cwd()).type, *words))
    assert (0, "") == (result.exit_code, result.stderr)
    return (
        STAMP.sub("/STAMP/", result.stdout.rstrip()).splitlines(),
        STAMP.sub("/STAMP/", shown.rstrip()).splitlines(),
    )


async def test_every_block_prints_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    PAGE.save(tmp_path)
    importlib.invalidate_caches()
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for block in PAGE.blocks:
            if block.language == "console":
                printed, shown = await run_command(block)
                assert shown == printed
            elif block.language == "python" and not block.title:
                await run_block(block.text, names)
                assert OUTPUT.findall(block.text) == capsys.readouterr().out.splitlines()
        await names["app"].close()
    finally:
        PAGE.unload()


def test_all_blocks_are_found() -> None:
    languages = [block.language for block in PAGE.blocks]

    assert ["orders.py"] == [block.title for block in PAGE.files]
    assert (9, 3) == (languages.count("python"), languages.count("console"))
