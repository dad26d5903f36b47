"""The table of lineage: every name has a row, every row a proof on every storage, the page is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.lineage.places import PLACES, STORAGES

TOOLS = Path(__file__).parent.parent.parent / "tools"
ITEM = re.compile(r"::(?P<name>\w+)\[(?P<params>.*)\]$")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import print_lineage  # type: ignore[import-not-found]

    module: ModuleType = print_lineage
    return module


def collected() -> dict[str, set[str]]:
    """By test, the storages on which it is collected."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    folder, ours = str(Path(__file__).parent), f"--ignore={__file__}"
    done = subprocess.run([*command, folder, ours], capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {}
    for item in filter(None, map(ITEM.search, done.stdout.splitlines())):
        found.setdefault(item["name"], set()).add(item["params"].partition("-")[0])
    return found


def unproven(tests: set[str], found: dict[str, set[str]]) -> list[str]:
    """Those that are not collected on every storage of the list."""
    return sorted(test for test in tests if not set(STORAGES) <= found.get(test, set()))


def test_every_row_is_proven_on_every_storage_of_the_list(tool: ModuleType) -> None:
    found = collected()

    assert [] == unproven(tool.proofs(), found)


def test_a_row_without_its_proof_is_told() -> None:
    found = {"test_a": set(STORAGES), "test_b": {"memory"}}

    assert ["test_b", "test_c"] == unproven({"test_a", "test_b", "test_c"}, found)


def test_every_proof_of_the_folder_is_in_a_row(tool: ModuleType) -> None:
    """A law that is proven here is worth a line in the table."""
    assert [] == sorted(set(collected()) - tool.proofs())


@pytest.mark.parametrize("system", ["queasy", "programma", "beequeue", "job_queue"])
def test_every_name_of_a_system_has_its_row(tool: ModuleType, system: str) -> None:
    assert [] == list(tool.faults(system))


def test_a_name_without_a_row_is_told(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tool.names_of("queasy")
    monkeypatch.setattr(tool, "names_of", lambda _: (known - {("option", "runAt")}) | {("option", "new")})

    assert ["queasy: option runAt is no name of the list", "queasy: option new has no row"] == list(
        tool.faults("queasy")
    )


def test_a_row_says_how_and_is_proven_or_later(tool: ModuleType) -> None:
    for raw in ({"option": ["x"], "dibs": "y"}, {"dibs": "y", "tests": ["t"]}, {"option": ["x"], "dibs": ""}):
        with pytest.raises(ValueError, match="a row needs"):
            tool.row_of(raw)


def test_the_page_is_the_one_in_the_data(tool: ModuleType) -> None:
    assert 0 == tool.main(["--check"])


def test_a_stale_page_is_found(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "lineage.md"
    stale.write_text(tool.page().replace("Programma", "Programm"), "utf-8")
    monkeypatch.setattr(tool, "TARGET", stale)

    assert 1 == tool.main(["--check"])
    assert 0 == tool.main([])
    assert 0 == tool.main(["--check"])


def test_every_storage_of_the_list_has_its_places() -> None:
    assert set(STORAGES) <= set(PLACES)
    assert {"memory", "file"} <= set(STORAGES)
