"""Checks what a wheel and a source distribution of dibs contain, and what their metadata says.

    python tools/check_artifacts.py dist/*            exit with 1 and print a line for each fault
    python tools/check_artifacts.py --final dist/*    refuse placeholders, and unassembled changes

`nox -s release` runs it on what it has built, and tests/packaging/test_artifacts.py on a wheel of the source.
"""

# ruff: noqa: INP001, T201 - a script for contributors

from __future__ import annotations

import argparse
import configparser
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any, Final

PROJECT: Final = Path(__file__).parent.parent
#: Folder of the source -> folder in the wheel.
PACKAGES: Final = {
    "src/dibs": "dibs",
    "src/pyspark_dibs": "pyspark_dibs",
    "conformance/dibs_conformance": "dibs_conformance",
    "conformance/dibs_testing": "dibs_testing",
}
#: Names in a wheel that are no file of ours: the metadata of the wheel.
METADATA: Final = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
#: Files and folders that a source distribution needs to build, test, describe and deploy dibs.
NEEDED_IN_SDIST: Final = (
    ".github",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "mkdocs.yml",
    "noxfile.py",
    "pyproject.toml",
    "tests",
    "tools",
    *PACKAGES,
)
#: Files that must not be in a source distribution: caches, environments, results and the files of editors.
UNWANTED: Final = re.compile(
    r"(^|/)(__pycache__|\.[^/]+_cache|\.hypothesis|\.venv|\.nox|\.git|\.bench-[^/]*|dist|site)(/|$)"
    r"|^benchmarks/results/|\.(pyc|so|log)$"
)
#: Fragments of the changelog. `nox -s changelog` removes them, so a final release has none.
FRAGMENT: Final = re.compile(r"changelog\.d/[^/]+\.[a-z]+\.md")
#: Texts that show a file written by others. The licence of such a file must be in the wheel, too.
FOREIGN: Final = re.compile(rb"@licen[cs]e|copyright|MIT License|SPDX-License", re.IGNORECASE)
URLS: Final = {"Documentation", "Source", "Issues", "Changelog"}


def read_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def read_sdist(path: Path) -> dict[str, bytes]:
    """Return the files of a source distribution, without its top folder."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if (file := archive.extractfile(member)) is not None:
                found[PurePosixPath(*PurePosixPath(member.name).parts[1:]).as_posix()] = file.read()
    return found


def source_files() -> set[str]:
    """Return the names that a wheel must have for the files of the source."""
    return {
        f"{target}/{path.relative_to(PROJECT / source).as_posix()}"
        for source, target in PACKAGES.items()
        for path in (PROJECT / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check_wheel(files: Mapping[str, bytes], *, final: bool = False) -> Iterator[str]:
    """Yield a line for each fault of a wheel: files, licences, entry points and metadata."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    info = f"dibs-{project['version']}.dist-info"
    expected = source_files() | {f"{info}/{name}" for name in METADATA}
    yield from (f"the wheel lacks {name}" for name in sorted(expected - files.keys()))
    yield from (
        f"the wheel has {name}, which is not in the source" for name in sorted(files.keys() - expected)
    )
    yield from check_foreign(files)
    if f"{info}/METADATA" in files:
        yield from check_metadata(Parser().parsestr(files[f"{info}/METADATA"].decode()), project, final=final)
    if f"{info}/entry_points.txt" in files:
        yield from check_entry_points(files[f"{info}/entry_points.txt"].decode(), set(files))


def check_foreign(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield a line for each bundled file that names a licence or an owner of its own."""
    for name, content in files.items():
        if not name.endswith(".py") and ".dist-info/" not in name and FOREIGN.search(content):
            yield f"{name} names a licence: add that licence to license-files, and the name to this check"


def check_metadata(found: Message, project: Mapping[str, Any], *, final: bool) -> Iterator[str]:
    expected = {
        "Name": "dibs",
        "Version": project["version"],
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    for field, value in expected.items():
        if found[field] != value:
            yield f"METADATA has {field} {found[field]!r} in place of {value!r}"
    urls = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))
    yield from (f"METADATA lacks the URL {name}" for name in sorted(URLS - urls.keys()))
    if final:
        yield from (
            f"{name} {url} leads nowhere: set it under [project.urls]"
            for name, url in urls.items()
            if ".example/" in url
        )
        yield from (
            f"links of the readme begin with {url}, which leads nowhere: set the replacement under "
            "[tool.hatch.metadata.hooks.fancy-pypi-readme]"
            for url in find_placeholders(str(found.get_payload()))
        )
    relative = re.findall(r"\]\((?!https?:|#)([^)]+)\)", str(found.get_payload()))
    yield from (f"the readme has the relative link {link}" for link in relative)


def find_placeholders(text: str) -> list[str]:
    """Return the placeholders for addresses of the project in a text, each up to its first folder."""
    return sorted(set(re.findall(r"https://dibs\.example/\w+", text)))


def check_entry_points(text: str, files: set[str]) -> Iterator[str]:
    parser = configparser.ConfigParser(delimiters="=")
    parser.read_string(text)
    for group in parser.sections():
        for name, target in parser[group].items():
            module = target.partition(":")[0].replace(".", "/")
            if not {f"{module}.py", f"{module}/__init__.py"} & files:
                yield f"the entry point {name} of {group} names {target}, which the wheel lacks"


def check_sdist(files: Mapping[str, bytes], *, final: bool = False) -> Iterator[str]:
    """Yield a line for each file that a source distribution lacks or must not have."""
    expected = {
        path.relative_to(PROJECT).as_posix()
        for name in NEEDED_IN_SDIST
        for path in ((PROJECT / name).rglob("*") if (PROJECT / name).is_dir() else [PROJECT / name])
        if path.is_file() and not UNWANTED.search(path.relative_to(PROJECT).as_posix())
    }
    yield from (f"the sdist lacks {name}" for name in sorted(expected - files.keys()))
    yield from (f"the sdist has {name}" for name in sorted(files) if UNWANTED.search(name))
    if final:
        yield from (
            f"{name} is in no section of CHANGELOG.md: run `nox -s changelog`"
            for name in sorted(files)
            if FRAGMENT.fullmatch(name)
        )
        units = (name for name in sorted(files) if name.startswith("deploy/"))
        yield from (
            f"{name} names {url}, which leads nowhere"
            for name in units
            for url in find_placeholders(files[name].decode())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--final", action="store_true", help="check what an upload needs, too")
    options = parser.parse_args()
    faults: list[str] = []
    for path in options.artifacts:
        is_wheel = path.suffix == ".whl"
        files = read_wheel(path) if is_wheel else read_sdist(path)
        faults += (check_wheel if is_wheel else check_sdist)(files, final=options.final)
        print(f"{path.name}: {len(files)} files, {path.stat().st_size:,} bytes")
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
