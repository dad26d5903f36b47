"""Builds the sdist, and the wheel from the sdist, twice, and requires equal bytes.

    python tools/build_release.py dist

Each build starts from a new export of the last commit, in a folder of another name, because a build must not
depend on files that git ignores, on paths, or on the time. The dates in the archives are that of the commit.
"""

# ruff: noqa: INP001, T201, S603, S607 - a script for contributors that starts git and a build

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parent.parent


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=PROJECT, check=True, capture_output=True).stdout


def build(source: Path) -> dict[str, Path]:
    """Export the last commit to a folder and build there. Return the files by their names."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(source, filter="data")
    epoch = git("log", "-1", "--format=%ct").decode().strip()
    command = [sys.executable, "-m", "build", "--outdir", str(source / "dist"), str(source)]
    subprocess.run(
        command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": epoch}, stdout=subprocess.DEVNULL
    )
    return {path.name: path for path in sorted((source / "dist").iterdir())}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(target: Path) -> int:
    if git("status", "--porcelain").strip():
        print("note: changes that are not committed are not in the build")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        first, second = build(Path(folder) / "one"), build(Path(folder) / "another" / "place")
        different = [
            name for name in first.keys() | second.keys() if digest(first[name]) != digest(second[name])
        ]
        for path in first.values():
            shutil.copy(path, target)
            print(f"{digest(path)}  {path.name}")
    print(f"different bytes in two builds: {different}" if different else "two builds have the same bytes")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
