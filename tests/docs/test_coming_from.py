"""Coming from another system: our side of each table is typed, on the page's own app, and holds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs import DibsError
from tests.cli.shell import Shell
from tests.docs.pages import DOCS, Block, Page, Row, type_in, type_row

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "howto").glob("coming_from_*.md"))


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = Page(request.param)
    page.save(tmp_path)
    importlib.invalidate_caches()
    yield page
    page.forget()


async def test_our_side_does_what_it_says(page: Page) -> None:
    names: dict[str, Any] = {"__name__": "typed"}
    for step in page.steps:
        if isinstance(step, Block):
            await type_in(step.text, names)
        elif step.ours.startswith("raise "):
            with pytest.raises(DibsError):
                await type_row(step, names)
        elif not step.ours.startswith("dibs "):
            await type_row(step, names)
    await names["app"].close()


def test_our_commands_exist(page: Page, tmp_path: Path) -> None:
    for row in (row for row in page.rows if row.ours.startswith("dibs ")):
        _, verb, *words = row.ours.split()
        help_ = Shell(tmp_path).type(verb, "--help")

        assert 0 == help_.exit_code
        assert [] == [word for word in words if word.startswith("--") and word not in help_.stdout]


@pytest.mark.parametrize("name", PAGES)
def test_ten_lines_are_set_side_by_side(name: str) -> None:
    rows = Page(name).rows

    assert 10 == len(rows) == Page(name).text.count("\n| ") - 1
    assert all(row.theirs.count("`") >= 2 for row in rows)


def test_a_row_that_gives_something_else_is_noticed() -> None:
    import asyncio

    with pytest.raises(AssertionError):
        asyncio.run(type_row(Row("", "1 + 1", "3", 0), {}))


def test_each_of_the_seven_has_a_page() -> None:
    systems = ("beequeue", "bullmq", "celery", "job_queue", "programma", "queasy", "rq")

    assert [f"howto/coming_from_{name}.md" for name in systems] == PAGES
