"""Writes the source of earlier versions of dibs, for the tests of rolling upgrades.

    python tools/write_earlier_version.py before=5330d805 older=cf42e35c~1

The archive tests/upgrade/earlier.tar.xz has a folder for each version, without the comments and docstrings of
Python, the dashboard, Spark and the command line, to be small. The tests use the archive because
source distributions and shallow clones have no history. Its file VERSIONS names the commits.
"""

# ruff: noqa: INP001, T201, S603 - a script for contributors that starts git

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parent.parent
TARGET: Final = PROJECT / "tests/upgrade/earlier.tar.xz"
LEFT_OUT: Final = ("src/dibs/web/", "src/dibs/spark/", "src/dibs/cli/")
DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def files(commit: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the package dibs at a commit."""
    command = ["git", "archive", commit, "src/dibs"]
    packed = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None and not member.name.startswith(LEFT_OUT):
                content = file.read()
                yield (
                    member.name.removeprefix("src/"),
                    shorten(content) if member.name.endswith(".py") else content,
                )


def shorten(source: bytes) -> bytes:
    """Return a module without its comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant(""))
    return ast.unparse(tree).encode()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def main(versions: list[str]) -> None:
    TARGET.parent.mkdir(exist_ok=True)
    named = dict(version.split("=", 1) for version in versions)
    with tarfile.open(TARGET, "w:xz", preset=9) as archive:
        add(archive, "VERSIONS", "".join(f"{name} {commit}\n" for name, commit in named.items()).encode())
        found = {
            f"{name}/{path}": content for name, commit in named.items() for path, content in files(commit)
        }
        # Equal files of two versions stand next to each other, where xz finds them.
        for path in sorted(found, key=lambda path: (path.partition("/")[2], path)):
            add(archive, path, found[path])
    print(f"{TARGET.relative_to(PROJECT)}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
