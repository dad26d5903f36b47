"""Pages of the docs as tests run them: files are saved, blocks typed at a prompt, tables row by row.

A fence marked ```python {.no-run} is left alone: what it shows is tested elsewhere, or not to be run. To the
site the mark is a class of the block, and GitHub reads nothing behind the language.
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
SHOWN = re.compile(r"^#> ?(.*)\n?", re.MULTILINE)
#: The last cell of a row: what is typed, and after an arrow what it gives.
TYPED = re.compile(r"^\|(?P<theirs>.*)\| `(?P<ours>[^`]+)`(?: → `(?P<gives>[^`]+)`)? \|$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, what else stands on the fence, its text, and where it begins."""

    language: str
    about: str
    text: str
    place: int

    @property
    def title(self) -> str:
        found = re.search(r'title="(.*?)"', self.about)
        return found[1] if found else ""

    @property
    def runs(self) -> bool:
        return "{.no-run}" not in self.about


class Row(NamedTuple):
    """One row of a table that sets another system beside ours."""

    theirs: str
    ours: str
    gives: str | None
    place: int


class Page:
    """A page, read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (DOCS / name).read_text("utf-8")
        self.blocks = [
            Block(found[1], found[2], found[3], found.start()) for found in FENCED.finditer(self.text)
        ]

    @property
    def rows(self) -> list[Row]:
        return [
            Row(found["theirs"].strip(), found["ours"], found["gives"], found.start())
            for found in TYPED.finditer(self.text)
        ]

    @property
    def files(self) -> list[Block]:
        return [block for block in self.blocks if block.title]

    @property
    def typed(self) -> list[Block]:
        """What is typed at the prompt."""
        python = [block for block in self.blocks if block.language == "python" and not block.title]
        return [block for block in python if block.runs]

    @property
    def steps(self) -> list[Block | Row]:
        """What is typed, in the order of the page: blocks and rows."""
        return sorted([*self.typed, *self.rows], key=lambda step: step.place)

    def commands(self) -> Iterator[list[str]]:
        """What is typed at the shell, as words after `dibs`."""
        for block in self.blocks:
            if block.language == "console" and block.runs:
                lines = [line.removeprefix("$ ") for line in block.text.splitlines()]
                yield from (line.split()[1:] for line in lines if line.startswith("dibs "))

    def save(self, folder: Path, **replaced: str) -> list[str]:
        """Save the titled blocks as files, some of their words replaced if need be."""
        for block in self.files:
            text = block.text
            for old, new in replaced.items():
                text = text.replace(old, new)
            (folder / block.title).write_text(text, "utf-8")
        return [block.title for block in self.files]

    def forget(self) -> None:
        """Let its files be imported anew by the next test."""
        for block in self.files:
            sys.modules.pop(block.title.removesuffix(".py"), None)


async def type_in(text: str, names: dict[str, Any], *, mode: str = "exec") -> Any:
    """Run a block as `python -m asyncio` does: with await at the top."""
    code = compile(text, "docs", mode, flags=PyCF_ALLOW_TOP_LEVEL_AWAIT)
    given = eval(code, names)
    return await given if inspect.isawaitable(given) else given


async def type_row(row: Row, names: dict[str, Any]) -> None:
    """Type what stands in a row, completed to a statement where it is the beginning of one."""
    text = row.ours
    if row.gives is not None:
        given = await type_in(text, names, mode="eval")
        assert row.gives == repr(given), row.ours
        return
    if text.startswith("@"):
        text += f"\ndef declared_{row.place}(data: object = None) -> None: ..."
    elif text.endswith(":"):
        text += "\n    pass"
    await asyncio.wait_for(type_in(text, names), 10)
