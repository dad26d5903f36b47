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
