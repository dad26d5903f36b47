"""Fragments have a known kind and a text, and `nox -s changelog` moves them to CHANGELOG.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from dibs.version import VERSION
from tests.source import PROJECT

FRAGMENTS = PROJECT / "changelog.d"
KINDS = [
    kind["directory"]
    for kind in tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]["type"]
]
NOT_FRAGMENTS = {"README.md", "template.jinja"}


def test_each_fragment_has_a_kind_and_a_text() -> None:
    """towncrier ignores a file with another name, so that its change would be in no changelog."""
    named = re.compile(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md")
    paths = [path for path in FRAGMENTS.iterdir() if path.name not in NOT_FRAGMENTS]

    assert [] == [path.name for path in paths if not named.fullmatch(path.name)]
    assert [] == [path.name for path in paths if not path.read_text("utf-8").strip()]


def test_the_readme_of_fragments_lists_the_kinds() -> None:
    listed = re.findall(r"^\| `([a-z]+)` \|", (FRAGMENTS / "README.md").read_text("utf-8"), re.MULTILINE)

    assert sorted(KINDS) == sorted(listed)


def test_the_changelog_has_a_section_of_this_version() -> None:
    assert f"\n## {VERSION} (" in (PROJECT / "CHANGELOG.md").read_text("utf-8")


def test_fragments_move_to_the_changelog(tmp_path: Path) -> None:
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    shutil.copy(PROJECT / "CHANGELOG.md", tmp_path)
    (tmp_path / "changelog.d").mkdir()
    for name in NOT_FRAGMENTS:
        shutil.copy(FRAGMENTS / name, tmp_path / "changelog.d")
    (tmp_path / "changelog.d/fold-run-at.fixed.md").write_text("A fold keeps\nthe earlier time.\n", "utf-8")
    (tmp_path / "changelog.d/7.breaking.md").write_text("`work` is gone.\n", "utf-8")
    command = ["build", "--name", "dibs", "--version", "9.9.9", "--date", "2030-01-02", "--yes"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    written = (tmp_path / "CHANGELOG.md").read_text("utf-8")

    assert 0 == done.returncode, done.stderr
    assert NOT_FRAGMENTS == {path.name for path in (tmp_path / "changelog.d").iterdir()}
    section = written.partition("\n## 9.9.9 (2030-01-02)\n")[2].partition("\n## ")[0]
    breaking, fixed = "### Breaking\n\n- `work` is gone.", "### Fixed\n\n- A fold keeps\n  the earlier time."
    assert f"{breaking}\n\n{fixed}" == section.strip()
    assert (PROJECT / "CHANGELOG.md").read_text("utf-8").partition("## 0.1.0")[2] == written.partition(
        "## 0.1.0"
    )[2]
