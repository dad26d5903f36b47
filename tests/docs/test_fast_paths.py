"""Every fast path on the page has a test that exists."""

from __future__ import annotations

import re

from tests.source import PROJECT

PAGE = (PROJECT / "docs/explanation/fast-paths.md").read_text("utf-8")
ROWS = [row.split(" | ") for row in PAGE.splitlines() if row.startswith("| `")]


def test_every_row_names_a_test_that_exists() -> None:
    for code, _, _, named in ROWS:
        files = [PROJECT / name for name in re.findall(r"`(tests/\S+\.py)`", named)]
        functions = re.findall(r"`(test_\w+)`", named)
        searched = files or (PROJECT / "tests").rglob("test_*.py")
        text = "".join(file.read_text("utf-8") for file in searched)

        assert files or functions, code
        assert [] == [name for name in functions if f"def {name}(" not in text], code


def test_the_page_names_every_fast_path_of_lua() -> None:
    includes = (PROJECT / "src/dibs/storage/redis/lua/include").glob("fast_*.lua")

    assert [] == [file.name for file in includes if file.name not in PAGE]
