"""Copies of the project. The tree of a mutant shares its unchanged files with the snapshot by hard links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutation.site import Site

#: The storages in examples/, by the scheme of their URLs.
EXAMPLES: Final = ("sqlite", "lmdb")

#: The folders and files of the project that a run of the kit or of the tests needs.
_PARTS: Final = ("src", "conformance", "examples", "tests", "tools", "docs", "benchmarks")
_FILES: Final = ("pyproject.toml", "noxfile.py", "README.md", "mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md")
_IGNORED: Final = shutil.ignore_patterns(".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache")


@contextmanager
def snapshot(project: Path) -> Iterator[Path]:
    """Copy the project into a temporary folder, so that edits during a run do not change the mutants."""
    with TemporaryDirectory(prefix="dibs_mutants_") as folder:
        tree = Path(folder) / "snapshot"
        for part in _PARTS:
            shutil.copytree(project / part, tree / part, ignore=_IGNORED)
        for file in _FILES:
            shutil.copy2(project / file, tree / file)
        for name in EXAMPLES:
            _write_entry_point(tree, name)
        yield tree


@contextmanager
def mutated(tree: Path, site: Site | None) -> Iterator[Path]:
    """Return a copy of a snapshot with one mutation, or without one. Remove it at the end."""
    with TemporaryDirectory(prefix="mutant_", dir=tree.parent) as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy, copy_function=os.link)
        if site is not None:
            file = copy / site.file
            text = site.apply(file.read_text("utf-8"))
            # A new file: the old one is the same file as in the snapshot.
            file.unlink()
            file.write_text(text, "utf-8")
        yield copy


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which Python imports dibs and its tests from this tree."""
    examples = [tree / f"examples/dibs-{name}/src" for name in EXAMPLES]
    folders = [tree / "src", tree / "conformance", *examples, tree]
    path = os.pathsep.join(map(str, folders))
    return {**os.environ, "PYTHONPATH": path, "DIBS_TEST_SERVERS": "required"}


def _write_entry_point(tree: Path, name: str) -> None:
    """Write the metadata by which dibs finds the storage of an example, as pip would write it."""
    info = tree / f"examples/dibs-{name}/src/dibs_{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dibs-{name}\nVersion: 0.1.0\n", "utf-8")
    points = f"[dibs.storages]\n{name} = dibs_{name}:open_url\n"
    (info / "entry_points.txt").write_text(points, "utf-8")
