"""The links of the docs have targets, and the index pages link to all pages."""

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
    """Return the fragment of a heading, as GitHub and MkDocs generate it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        path, _, fragment = link.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: the file does not exist"
        elif fragment and fragment not in map(anchor, HEADING.findall(target.read_text("utf-8"))):
            yield f"{link}: the heading does not exist"


@pytest.mark.parametrize("page", [PROJECT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    assert [] == list(broken_links(page))


def unlinked(index: Path, pages: set[Path]) -> set[Path]:
    """Return the pages to which the index has no link."""
    return (
        pages - {index} - {(index.parent / link).resolve() for link in LINK.findall(index.read_text("utf-8"))}
    )


def test_the_index_of_decisions_names_every_one() -> None:
    assert set() == unlinked(DECISIONS, set(DECISIONS.parent.glob("*.md")))


def test_the_index_of_the_docs_names_every_other_page() -> None:
    others = {page for page in PAGES if page.parent != DECISIONS.parent}

    assert set() == unlinked(DOCS / "README.md", others | {DECISIONS})
