"""The docs lead where they say, and their indexes leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import PROJECT

DOCS = PROJECT / "docs"
DECISIONS = DOCS / "decisions/README.md"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    """The fragment that a heading can be reached by, as GitHub and MkDocs make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        path, _, fragment = link.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif fragment and fragment not in map(anchor, HEADING.findall(target.read_text("utf-8"))):
            yield f"{link}: there is no such heading"


@pytest.mark.parametrize("page", [PROJECT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [] == list(broken(page))


def unnamed(index: Path, pages: set[Path]) -> set[Path]:
    """Those of the pages that the index has no link to."""
    return (
        pages - {index} - {(index.parent / link).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    )


def test_the_index_of_decisions_names_every_one() -> None:
    assert set() == unnamed(DECISIONS, set(DECISIONS.parent.glob("*.md")))


def test_the_index_of_the_docs_names_every_other_page() -> None:
    others = {page for page in PAGES if page.parent != DECISIONS.parent}

    assert set() == unnamed(DOCS / "README.md", others | {DECISIONS})
