"""The program of the README runs, and the tests, sessions and folders that the README names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dibs.doctor import checks, examination
from dibs.model.findings import Rule
from dibs.storage import diagnosis
from dibs.storage.file import diagnosis as of_files
from dibs.storage.postgres import diagnosis as of_postgres
from dibs.storage.redis import diagnosis as of_redis
from tests.docs.pages import FENCED
from tests.source import PROJECT
from tests.storage_urls import new_url, unexpected_lines

README = (PROJECT / "README.md").read_text("utf-8")
URL = "file:./jobs"
PROMISES = (PROJECT / "docs/explanation/promises.md").read_text("utf-8")
BOTH = README + PROMISES
#: Shell commands, in the text and in blocks.
COMMANDS = [*re.findall(r"`([^`\n]+)`", BOTH), *re.findall(r"^    (\S.*)$", README, re.MULTILINE)]


@pytest.fixture(params=["as written", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program of the README, as written or with the storage of DIBS_URL."""
    (program,) = (found[3] for found in FENCED.finditer(README) if found[1] == "python")
    name = re.match(r"# (\S+)\n", program)
    assert name is not None
    if request.param != "as written":
        program = program.replace(f'"{URL}"', "")
        monkeypatch.setenv("DIBS_URL", new_url(request.param, request))
    (tmp_path / name[1]).write_text(program, "utf-8")
    return tmp_path


@contextmanager
def running(arguments: list[str], folder: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, *arguments], cwd=folder, stderr=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.terminate()
            process.communicate(timeout=3000)


def test_the_program_and_its_worker_print_what_the_task_returns(project: Path) -> None:
    assert "dibs worker thumbs:app" in README
    with running(["-m", "dibs", "worker", "thumbs:app"], project):
        done = subprocess.run(
            [sys.executable, "thumbs.py"],
            cwd=project,
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    assert ("a.png at 100\n", []) == (done.stdout, unexpected_lines(done.stderr))


def test_the_tests_sessions_and_modules_it_names_exist() -> None:
    paths = [path for word in COMMANDS if word.startswith("pytest ") for path in word.split()[1:]]
    sessions = re.findall(r"nox -s (\w+)", BOTH)
    modules = re.findall(r"python -m (\w+)", BOTH)
    known = (PROJECT / "noxfile.py").read_text("utf-8")

    assert paths
    assert [] == [path for path in paths if not (PROJECT / path).exists()]
    assert sessions
    assert [] == [name for name in sessions if f"def {name}(" not in known]
    assert [] == [name for name in modules if name != "venv" and not (PROJECT / name).exists()]


def test_the_folders_it_lists_exist() -> None:
    folders = re.findall(r"^    ((?:src|conformance|examples|benchmarks)\S*)  +\w", README, re.MULTILINE)

    assert len(folders) >= 8
    assert [] == [folder for folder in folders if not (PROJECT / folder).is_dir()]


# -- The table of findings in docs/howto/doctor.md has each rule of the code -------------------------


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
