"""dibs in a ZIP file, as `spark-submit --py-files` ships it, and a Python that has only what dibs needs."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from zipfile import ZipFile

import dibs


def python_without_dibs(folder: Path) -> str:
    """Write a program that runs this Python with its packages, but without the editable dibs among them."""
    program = folder / "python-without-dibs"
    # -S ignores the .pth files by which an editable package is found.
    paths = os.pathsep.join(site.getsitepackages() + [p for p in sys.path if p.endswith("site-packages")])
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{paths}" exec {sys.executable} -S "$@"\n', "utf-8"
    )
    program.chmod(0o755)
    return str(program)


def zipped_dibs(folder: Path) -> Path:
    """Return a ZIP file of the packages dibs and pyspark_dibs, as --py-files takes it."""
    source = Path(dibs.__file__).parents[1]
    path = folder / "dibs.zip"
    with ZipFile(path, "w") as archive:
        for package in ("dibs", "pyspark_dibs"):
            for file in sorted((source / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(source))
    return path
