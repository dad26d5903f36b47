"""The programs of the reference pages run, and print the output that the pages show."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.docs.pages import OUTPUT, Block, Page

PROGRAMS = [
    pytest.param(block, id=f"{name}-{number}")
    for name in ("app", "batches", "flows", "handlers", "history")
    for number, block in enumerate(Page(f"reference/{name}.md").python_blocks)
]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_of_the_page_prints_its_output(program: Block, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program.text)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "program.py"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await process.communicate()

    assert (0, b"") == (process.returncode, errors)
    assert OUTPUT.findall(program.text) == printed.decode().splitlines()
