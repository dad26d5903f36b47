"""The lineage tables: names and passages have rows, rows have a class and tests, and the page is current."""

from __future__ import annotations

import os
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
    # A worker of xdist runs no long tests of its own accord, see tests/conftest.py.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    pytest_run = subprocess.run(
        [*command, folder, without_this], env=environment, capture_output=True, text=True, check=True
    )
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


COMPLETE = {"id": "Q1", "passage": ["code"], "option": ["x"], "dibs": "y", "tests": ["t"], "class": "proven"}


@pytest.mark.parametrize("field", ["id", "passage", "option", "dibs", "tests", "class"])
def test_an_incomplete_row_is_refused(tool: ModuleType, field: str) -> None:
    assert tool.row_of(dict(COMPLETE)).tests

    with pytest.raises(ValueError, match=r"needs an id|has the class"):
        tool.row_of({name: value for name, value in COMPLETE.items() if name != field})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"why": "faster"}, "different"),
        ({"why": "faster", "tests": []}, "different"),
        ({"later": "flows"}, "later"),
        ({"tests": [], "others": ["tests/x.py::test_x"]}, "proven"),
        ({"tests": []}, "none of them"),
    ],
)
def test_the_class_of_a_row_fits_its_fields(
    tool: ModuleType, fields: dict[str, object], expected: str
) -> None:
    """A row is proven by tests, or different with a reason, or later with a plan."""
    for name in tool.CLASSES:
        raw = {**COMPLETE, **fields, "class": name}
        if name == expected:
            assert name == tool.row_of(raw).row_class
        else:
            with pytest.raises(ValueError, match="has the class"):
                tool.row_of(raw)


def test_a_passage_without_a_row_and_an_unknown_one_are_found(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tool.passages_of("queasy")
    monkeypatch.setattr(tool, "passages_of", lambda _: [*known[1:], "Licence"])

    assert [
        "queasy: the passage 'Licence' has no row",
        f"queasy: the passage {known[0]!r} is not in passages.toml",
    ] == list(tool.passage_errors("queasy"))


def test_a_missing_test_of_another_folder_is_found(tool: ModuleType) -> None:
    path = "tests/storage/postgres/scenarios/test_sql_queries.py"

    assert tool.exists(f"{path}::test_jobs_and_outcomes_are_rows")
    assert not tool.exists(f"{path}::test_jobs")
    assert not tool.exists("tests/storage/test_missing.py::test_jobs_and_outcomes_are_rows")


PAGE_ROW = re.compile(r"^\| (?P<id>[QPBJ]\d+) \|.* \| (?P<row_class>\w+) \| [^|]*\|$", re.MULTILINE)
COUNTS = re.compile(r"^\| (?P<title>[^|\d\n]+) \| (?P<counts>[\d |]+) \|$", re.MULTILINE)


def test_the_page_counts_its_rows_by_class(tool: ModuleType) -> None:
    """The numbers at the top are those of the rows below them, and each row is on the page once."""
    page = re.sub(r"\\\|", "/", tool.TARGET.read_text("utf-8"))
    found = [row.group("id", "row_class") for row in PAGE_ROW.finditer(page)]
    printed = {
        row["title"]: [int(count) for count in row["counts"].split("|")] for row in COUNTS.finditer(page)
    }

    assert sorted(id for id, _ in found) == sorted(
        row.id for system in tool.SYSTEMS for row in tool.rows_of(system)
    )
    for title, letters in {"queasy": "Q", "Programma": "P", "all": "QPBJ"}.items():
        classes = [row_class for id, row_class in found if id[0] in letters]
        assert [*map(classes.count, tool.CLASSES), len(classes)] == printed[title]
    assert len(tool.SYSTEMS) + 1 == len(printed)


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
