"""The table of findings in docs/howto/doctor.md has each rule of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dibs.doctor import checks, examination
from dibs.model.findings import Rule
from dibs.storage import diagnosis
from dibs.storage.file import diagnosis as of_files
from dibs.storage.postgres import diagnosis as of_postgres
from dibs.storage.redis import diagnosis as of_redis
from tests.source import PROJECT

MODULES = (checks, diagnosis, of_redis, of_postgres, of_files, examination)
#: Names of the test files that bring about the findings.
TESTS_OF_FINDINGS = ("test_diagnosis", "test_examination", "test_functions")
PAGE = (PROJECT / "docs" / "howto" / "doctor.md").read_text()


def rules() -> Iterator[Rule]:
    for module in MODULES:
        yield from module.RULES


def test_the_page_has_a_row_for_each_finding() -> None:
    table = PAGE.partition("<!-- findings: begin -->")[2].partition("<!-- findings: end -->")[0]
    rows = [f"| `{rule.code}` | {rule.severity} | {rule.means} |" for rule in rules()]

    assert rows == table.strip().splitlines()[2:]


def test_the_rules_of_each_module_are_complete_and_have_different_codes() -> None:
    found = [
        name
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, Rule) and value not in module.RULES and value not in diagnosis.RULES
    ]
    codes = [rule.code for rule in rules()]

    assert [] == found
    assert len(codes) == len(set(codes))


def test_every_code_is_tested() -> None:
    """Each code occurs in a test, with a storage that has the fault."""
    folders = (PROJECT / "tests" / "doctor", PROJECT / "tests" / "storage")
    texts = "".join(path.read_text() for folder in folders for path in _test_files(folder))

    assert [] == [rule.code for rule in rules() if not re.search(rf'"{rule.code}"', texts)]


def _test_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("test_*.py") if path.stem in TESTS_OF_FINDINGS)
