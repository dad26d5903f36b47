"""The programs of the reference pages of flows and batches run, and print the output that the pages show."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.docs.pages import OUTPUT, Page


@pytest.mark.parametrize("name", ["reference/flows.md", "reference/batches.md"])
async def test_the_program_of_the_page_prints_its_output(name: str, tmp_path: Path) -> None:
    (program,) = Page(name).python_blocks
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
