"""The site is complete: its navigation has all pages, and its reference has all public names.

`nox -s docs` checks that it builds without warnings.
"""

from __future__ import annotations

import re

import pytest
from markdown import markdown  # type: ignore[import-untyped]  # the package has no types

import dibs
import dibs.testing
from dibs.client.sync.app import BlockingDibs
from dibs.version import VERSION
from tests.docs.pages import DOCS
from tests.source import PROJECT

NAV = re.compile(r"^ +- (?:.*: )?(\S+\.md)$", re.MULTILINE)
FENCE = re.compile(r"^ *(```\w.*)$", re.MULTILINE)
SHOWN = re.compile(r"^::: (\S+)$", re.MULTILINE)
REFERENCE = [
    name for page in (DOCS / "reference").glob("*.md") for name in SHOWN.findall(page.read_text("utf-8"))
]


def test_the_navigation_names_every_page_once() -> None:
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))

    assert pages == sorted(NAV.findall((PROJECT / "mkdocs.yml").read_text("utf-8")))


def test_each_page_says_the_version() -> None:
    lines = (PROJECT / "mkdocs.yml").read_text("utf-8").splitlines()

    assert f"copyright: dibs {VERSION}" in lines


def test_the_list_for_programs_is_that_of_the_menu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python tools/write_llms.py` writes it."""
    monkeypatch.syspath_prepend(PROJECT / "tools")
    import write_llms  # type: ignore[import-not-found]

    assert write_llms.text() == (DOCS / "llms.txt").read_text("utf-8")


def test_the_site_renders_every_fence() -> None:
    """A fence that its Markdown does not recognize is shown as text, without a warning of the build."""
    fences = {fence for page in DOCS.rglob("*.md") for fence in FENCE.findall(page.read_text("utf-8"))}
    extensions = ["attr_list", "pymdownx.superfences"]

    assert "```python {.no-run}" in fences
    assert [] == [
        fence for fence in fences if "<pre" not in markdown(f"{fence}\nx\n```", extensions=extensions)
    ]


@pytest.mark.parametrize(
    "words",
    [
        "dashboard", "throttle", "debounce", "dead letter", "idempotent", "workflow", "purge", "security",
        "systemd", "docker", "outbox", "visibility timeout", "exactly once", "how many connections",
    ],
)  # fmt: skip
def test_a_search_for_the_words_of_strangers_finds_a_page(words: str) -> None:
    """The search of the site looks for words; a decision is no answer for a stranger."""
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name not in ("decisions", "appendix")]

    assert [page for page in pages if words in page.read_text("utf-8").lower()]


def test_only_pages_of_the_tests_of_spark_have_blocks_for_spark() -> None:
    """On another page no test would run such blocks."""
    marked = {
        page.relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        if "{.in-spark}" in page.read_text("utf-8")
    }
    tests = (PROJECT / "tests/spark/test_source_read.py").read_text("utf-8")

    assert marked
    assert [] == [name for name in marked if f'Page("{name}")' not in tests]


def test_the_reference_has_every_public_name() -> None:
    public = {f"dibs.{name}" for name in dibs.__all__} | {
        f"dibs.testing.{name}" for name in dibs.testing.__all__
    }
    blocking = {name for name in public if name.rpartition(".")[2].startswith("Blocking")}

    assert set() == public - blocking - set(REFERENCE)
    assert len(REFERENCE) == len(set(REFERENCE))


def test_the_tree_of_errors_is_the_one_in_the_code() -> None:
    _, tree = (dibs.errors.__doc__ or "").split("\n\n", 1)

    assert f"```text\n{tree.rstrip()}\n```" in (DOCS / "reference/errors.md").read_text("utf-8")


def test_public_names_have_docstrings() -> None:
    """The reference on the site is made of docstrings, so a name without one would have an empty entry."""
    missing = [name for name in dibs.__all__ if not (getattr(dibs, name).__doc__ or "").strip()]
    classes = [dibs.Dibs, dibs.Queue, dibs.Task, dibs.Ticket, dibs.CurrentJob, dibs.Claim]
    missing += [
        f"{one.__name__}.{name}"
        for one in classes
        for name, member in vars(one).items()
        if callable(member) and not name.startswith("_") and not member.__doc__
    ]

    assert [] == missing
    assert BlockingDibs.__doc__
