"""The lineage tables: each name has a row, each row has tests on each storage, and the page is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.lineage.storage_urls import NEW_URLS, STORAGES

TOOLS = Path(__file__).parent.parent.parent / "tools"
ITEM = re.compile(r"::(?P<name>\w+)\[(?P<params>.*)\]$")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import print_lineage  # type: ignore[import-not-found]

    module: ModuleType = print_lineage
    return module


def collected() -> dict[str, set[str]]:
    """Return the storages on which each test is collected, by test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    folder, without_this = str(Path(__file__).parent), f"--ignore={__file__}"
    pytest_run = subprocess.run([*command, folder, without_this], capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {}
    for item in filter(None, map(ITEM.search, pytest_run.stdout.splitlines())):
        found.setdefault(item["name"], set()).add(item["params"].partition("-")[0])
    return found


def missing_tests(tests: set[str], found: dict[str, set[str]]) -> list[str]:
    """Return the tests that are not collected on all storages."""
    return sorted(test for test in tests if not set(STORAGES) <= found.get(test, set()))


def test_the_tests_of_all_rows_run_on_all_storages(tool: ModuleType) -> None:
    found = collected()

    assert [] == missing_tests(tool.named_tests(), found)


def test_a_row_with_a_missing_test_is_found() -> None:
    found = {"test_a": set(STORAGES), "test_b": {"memory"}}

    assert ["test_b", "test_c"] == missing_tests({"test_a", "test_b", "test_c"}, found)


def test_every_lineage_test_is_in_a_row(tool: ModuleType) -> None:
    assert [] == sorted(set(collected()) - tool.named_tests())


@pytest.mark.parametrize("system", ["queasy", "programma", "beequeue", "job_queue"])
def test_every_name_of_a_system_has_a_row(tool: ModuleType, system: str) -> None:
    assert [] == list(tool.errors(system))


def test_a_name_without_a_row_is_found(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tool.names_of("queasy")
    monkeypatch.setattr(tool, "names_of", lambda _: (known - {("option", "runAt")}) | {("option", "new")})

    assert ["queasy: option runAt is not in names/queasy.toml", "queasy: option new has no row"] == list(
        tool.errors("queasy")
    )


def test_an_incomplete_row_is_refused(tool: ModuleType) -> None:
    for raw in ({"option": ["x"], "dibs": "y"}, {"dibs": "y", "tests": ["t"]}, {"option": ["x"], "dibs": ""}):
        with pytest.raises(ValueError, match="a row needs"):
            tool.row_of(raw)


def test_the_page_is_current(tool: ModuleType) -> None:
    assert 0 == tool.main(["--check"])


def test_an_outdated_page_is_found(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "lineage.md"
    stale.write_text(tool.page().replace("Programma", "Programm"), "utf-8")
    monkeypatch.setattr(tool, "TARGET", stale)

    assert 1 == tool.main(["--check"])
    assert 0 == tool.main([])
    assert 0 == tool.main(["--check"])


def test_every_storage_has_new_urls() -> None:
    assert set(STORAGES) <= set(NEW_URLS)
    assert {"memory", "file"} <= set(STORAGES)
