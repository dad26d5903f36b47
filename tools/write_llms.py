"""Writes docs/llms.txt, the list of pages for programs that read documentation, from the menu of the site.

python tools/write_llms.py
"""

# ruff: noqa: INP001 - a script that only its test imports

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # the package has no types

PROJECT: Final = Path(__file__).parent.parent
TARGET: Final = PROJECT / "docs" / "llms.txt"
#: Parts of the menu for contributors.
LEFT_OUT: Final = ("Decisions", "Appendix")


def text() -> str:
    """Return the list: a heading for each part of the menu, and a line for each page."""
    menu = yaml.safe_load((PROJECT / "mkdocs.yml").read_text("utf-8"))
    return "\n".join(
        [
            "# dibs",
            "",
            f"> {menu['site_description']} One run per id, on memory, files, Redis or Postgres.",
            *_lines(menu["nav"], ""),
            "",
        ]
    )


def _lines(items: list[dict[str, Any]], part: str) -> Iterator[str]:
    pages = [(title, path) for item in items for title, path in item.items() if isinstance(path, str)]
    if part and pages:
        yield from ("", f"## {part}", "")
    for title, path in pages:
        if path != "README.md":
            yield f"- [{title}]({path.removesuffix('.md')}/)"
    for item in items:
        for title, below in item.items():
            if not isinstance(below, str) and title not in LEFT_OUT:
                yield from _lines(below, title)


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
