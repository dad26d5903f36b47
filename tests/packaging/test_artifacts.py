"""The wheel and the sdist of this source have all files of the source and no others, and correct metadata.

`nox -s release` also builds twice, compares the bytes, and tries the wheel in new environments.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from dibs.version import VERSION
from tests.source import PROJECT

INFO = f"dibs-{VERSION}.dist-info"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(PROJECT / "tools")
    return import_module("check_artifacts")


def build(target: str, folder: Path) -> Path:
    """Build the wheel or the sdist in an empty folder, and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, check=True, cwd=PROJECT, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", tmp_path_factory.mktemp("sdist"))


def test_the_wheel_has_no_fault(tool: ModuleType, wheel: Path) -> None:
    assert [] == list(tool.check_wheel(tool.read_wheel(wheel)))


@pytest.mark.long
def test_addresses_that_lead_nowhere_stop_an_upload(tool: ModuleType, wheel: Path, sdist: Path) -> None:
    """CONTRIBUTING.md names the files with such addresses."""
    wheel_faults = list(tool.check_wheel(tool.read_wheel(wheel), final=True))
    sdist_faults = list(tool.check_sdist(tool.read_sdist(sdist), final=True))
    pages = re.findall(r"`(deploy/systemd/[\w*.-]+)`", (PROJECT / "CONTRIBUTING.md").read_text("utf-8"))

    assert wheel_faults, "the addresses are chosen: remove this test, and the check of addresses by --final"
    assert {*tool.URLS, "links"} == {fault.partition(" ")[0] for fault in wheel_faults}
    assert all("leads nowhere" in fault for fault in wheel_faults)
    assert ["deploy/systemd/*.service"] == pages
    assert {path.relative_to(PROJECT).as_posix() for path in PROJECT.glob(pages[0])} == {
        fault.partition(" ")[0] for fault in sdist_faults if "leads nowhere" in fault
    }


@pytest.mark.long
def test_the_sdist_has_no_fault(tool: ModuleType, sdist: Path) -> None:
    assert [] == list(tool.check_sdist(tool.read_sdist(sdist)))


def test_an_sdist_without_the_files_of_deploy_is_found(tool: ModuleType, sdist: Path) -> None:
    files = tool.read_sdist(sdist)
    del files["deploy/compose.yaml"]
    files["site/index.html"] = b""

    assert ["the sdist lacks deploy/compose.yaml", "the sdist has site/index.html"] == list(
        tool.check_sdist(files)
    )


def test_a_change_without_a_section_of_the_changelog_stops_an_upload(tool: ModuleType, sdist: Path) -> None:
    files = tool.read_sdist(sdist)
    files["changelog.d/new-thing.added.md"] = b"A new thing."
    faults = list(tool.check_sdist(files, final=True))

    assert "changelog.d/new-thing.added.md is in no section of CHANGELOG.md: run `nox -s changelog`" in faults
    assert not any("README" in fault or "template" in fault for fault in faults)


def rename(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(old, new)


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("dibs/web/static/dibs.js", None, "the wheel lacks dibs/web/static/dibs.js"),
        (f"{INFO}/licenses/LICENSE", None, f"the wheel lacks {INFO}/licenses/LICENSE"),
        ("tests/conftest.py", lambda _: b"", "the wheel has tests/conftest.py, which is not in the source"),
        (
            "dibs/web/static/dibs.css",
            lambda css: b"/*! @license X */" + css,
            "dibs/web/static/dibs.css names a licence",
        ),
        (f"{INFO}/METADATA", rename(b"Name: dibs", b"Name: dips"), "METADATA has Name 'dips'"),
        (f"{INFO}/METADATA", rename(b"Issues,", b"Bugs,"), "METADATA lacks the URL Issues"),
        (
            f"{INFO}/METADATA",
            lambda text: text + b"[a](docs/a.md)",
            "the readme has the relative link docs/a.md",
        ),
        (f"{INFO}/entry_points.txt", rename(b"__main__", b"main"), "the entry point dibs of console_scripts"),
    ],
)
def test_a_fault_is_found(
    tool: ModuleType, wheel: Path, name: str, change: Callable[[bytes], bytes] | None, fault: str
) -> None:
    files = tool.read_wheel(wheel)
    content = files.pop(name, b"")
    if change is not None:
        files[name] = change(content)
    found = list(tool.check_wheel(files))

    assert any(line.startswith(fault) for line in found), found


def test_the_version_is_the_one_of_the_code(wheel: Path) -> None:
    assert f"dibs-{VERSION}-py3-none-any.whl" == wheel.name


def test_the_wheel_is_tried_with_each_extra_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "tools")
    environments = import_module("try_wheel").ENVIRONMENTS
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]

    assert {extra for extra, _, _ in environments.values()} == {
        "",
        *project["optional-dependencies"],
    } - {"bench", "dev", "docs", "test"}
