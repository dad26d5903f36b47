"""The pages for users of other systems: the dibs code of each table runs on the app of the page."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import DibsError
from tests.cli.shell import Shell
from tests.docs.pages import DOCS, Block, Page, Row, run_block, run_row

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "howto").glob("coming_from_*.md"))


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = Page(request.param)
    page.save(tmp_path)
    importlib.invalidate_caches()
    yield page
    page.unload()


async def test_the_code_of_each_row_runs(page: Page) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for step in page.steps:
        if isinstance(step, Block):
            await run_block(step.text, names)
        elif step.dibs.startswith("raise "):
            with pytest.raises(DibsError):
                await run_row(step, names)
        elif not step.dibs.startswith("dibs "):
            await run_row(step, names)
    await names["app"].close()


def test_the_commands_exist(page: Page, tmp_path: Path) -> None:
    for row in (row for row in page.rows if row.dibs.startswith("dibs ")):
        _, command, *arguments = row.dibs.split()
        help_ = Shell(tmp_path).type(command, "--help")

        assert 0 == help_.exit_code
        assert [] == [word for word in arguments if word.startswith("--") and word not in help_.stdout]


@pytest.mark.parametrize("name", PAGES)
def test_each_table_has_ten_rows(name: str) -> None:
    rows, before = Page(name).rows, Page(name).text.partition("\n## ")[0]

    assert 10 == len(rows) == before.count("\n| ") - 1
    assert all(row.other.count("`") >= 2 for row in rows)


def test_a_row_with_a_wrong_result_fails() -> None:
    import asyncio

    with pytest.raises(AssertionError):
        asyncio.run(run_row(Row("", "1 + 1", "3", 0), {}))


def test_each_system_has_a_page() -> None:
    systems = [
        "beequeue",
        "bullmq",
        "celery",
        "dramatiq",
        "huey",
        "job_queue",
        "procrastinate",
        "programma",
        "queasy",
        "rq",
        "taskiq",
    ]

    assert [f"howto/coming_from_{name}.md" for name in systems] == PAGES
