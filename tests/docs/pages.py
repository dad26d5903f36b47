"""The pages of the docs, with their code blocks and tables, for tests that run them.

Blocks with a title are saved as files, other Python blocks run as if typed at a prompt, and rows of tables
run in order. The site reads a mark of a block as a CSS class, and GitHub ignores it:

- `{.no-run}` does not run;
- `{.in-shell}` runs in bash, in test_shell_blocks.py, on a storage with the jobs that the page speaks of;
- `{.until-ctrl-c}` starts programs that serve until Ctrl-C, in test_started_programs.py;
- `{.in-spark}` runs with a Spark session, in tests/spark/test_source_read.py.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.source import PROJECT

DOCS = PROJECT / "docs"
FENCED = re.compile(r"^```(\w+)(.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OUTPUT = re.compile(r"^#> ?(.*)\n?", re.MULTILINE)
#: A row whose last cell is code, with its result after an arrow.
CODE_ROW = re.compile(r"^\|(?P<other>.*)\| `(?P<dibs>[^`]+)`(?: → `(?P<result>[^`]+)`)? \|$", re.MULTILINE)
#: Marks of blocks that do not run with the other blocks of their page.
MARKS = ("no-run", "in-shell", "until-ctrl-c", "in-spark")


class Block(NamedTuple):
    """A fenced block."""

    language: str
    #: The rest of the line after the language.
    options: str
    text: str
    #: Index of its first character in the page.
    position: int

    @property
    def title(self) -> str:
        found = re.search(r'title="(.*?)"', self.options)
        return found[1] if found else ""

    @property
    def runs(self) -> bool:
        """True if this block runs with the page. Blocks with a mark run elsewhere, or not at all."""
        return not any(self.has_mark(mark) for mark in MARKS)

    def has_mark(self, mark: str) -> bool:
        return f"{{.{mark}}}" in self.options


class Row(NamedTuple):
    """One row of a table that compares another system with dibs."""

    other: str
    dibs: str
    #: The repr of the result, if the row has one.
    result: str | None
    #: Index of its first character in the page.
    position: int


class Page:
    """A page of the docs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (DOCS / name).read_text("utf-8")
        self.blocks = [
            Block(found[1], found[2], found[3], found.start()) for found in FENCED.finditer(self.text)
        ]

    @property
    def rows(self) -> list[Row]:
        return [
            Row(found["other"].strip(), found["dibs"], found["result"], found.start())
            for found in CODE_ROW.finditer(self.text)
        ]

    @property
    def files(self) -> list[Block]:
        return [block for block in self.blocks if block.title]

    @property
    def python_blocks(self) -> list[Block]:
        """The Python blocks that run as if typed at a prompt."""
        python = [block for block in self.blocks if block.language == "python" and not block.title]
        return [block for block in python if block.runs]

    @property
    def steps(self) -> list[Block | Row]:
        """The Python blocks and the rows, in the order of the page."""
        return sorted([*self.python_blocks, *self.rows], key=lambda step: step.position)

    def commands(self) -> Iterator[list[str]]:
        """Yield the arguments of each `dibs` command of the console blocks."""
        for block in self.blocks:
            if block.language == "console" and block.runs:
                lines = [line.removeprefix("$ ") for line in block.text.splitlines()]
                yield from (line.split()[1:] for line in lines if line.startswith("dibs "))

    def save(self, folder: Path, **replacements: str) -> list[str]:
        """Save the blocks with a title as files, with replacements of their text. Return the titles."""
        for block in self.files:
            text = block.text
            for old, new in replacements.items():
                text = text.replace(old, new)
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        return [block.title for block in self.files]

    def unload(self) -> None:
        """Remove the saved modules from sys.modules, so that the next test imports its own files."""
        for block in self.files:
            sys.modules.pop(block.title.removesuffix(".py"), None)


async def run_block(text: str, names: dict[str, Any], *, mode: str = "exec") -> Any:
    """Run a block as `python -m asyncio` does, with await at the top level."""
    code = compile(text, "docs", mode, flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    return await result if inspect.isawaitable(result) else result


async def run_row(row: Row, names: dict[str, Any]) -> None:
    """Run the code of a row, and compare its result. Complete a decorator or the first line of a block."""
    text = row.dibs
    if row.result is not None:
        result = await run_block(text, names, mode="eval")
        assert row.result == repr(result), row.dibs
        return
    if text.startswith("@"):
        text += f"\ndef declared_{row.position}(data: object = None) -> None: ..."
    elif text.endswith(":"):
        text += "\n    pass"
    await asyncio.wait_for(run_block(text, names), 10)
