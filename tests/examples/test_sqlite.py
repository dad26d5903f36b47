"""Tests that examples/dibs-sqlite stays certified. dibs finds its storage through an entry point."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.source import PROJECT

EXAMPLE = PROJECT / "examples/dibs-sqlite"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process that finds the package and the metadata that pip would write."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    info = tmp_path / f"dibs_sqlite-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    [(group, points)] = project["entry-points"].items()
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLE / "src")])}


def run(installed: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=EXAMPLE,
        env=installed,
        capture_output=True,
        text=True,
        check=False,
    )


#: The contract test of the package at the lowest level, L0. Higher levels take minutes.
CERTIFY_L0 = """
import sys
from dibs_conformance import certify

if __name__ == "__main__":
    report = certify(sys.argv[1], examples=10, seed=1)
    sys.exit(None if report.certified else report.text())
"""


def test_its_own_tests_pass(installed: dict[str, str]) -> None:
    done = run(installed, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_storage.py")

    assert 0 == done.returncode, done.stdout + done.stderr


def test_it_is_certified_at_l0(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "certify_l0.py").write_text(CERTIFY_L0)

    done = run(installed, "certify_l0", f"sqlite:{tmp_path}/jobs.db")

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.certify
def test_its_contract_test_passes(installed: dict[str, str]) -> None:
    done = run(installed, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_contract.py")

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.certify
def test_it_reaches_l3_within_the_budget(installed: dict[str, str], tmp_path: Path) -> None:
    """Certify for DIBS_CERTIFY_BUDGET seconds, and print the report with its seed."""
    budget = os.environ.get("DIBS_CERTIFY_BUDGET", "240")
    words = ("dibs", "certify", f"sqlite:{tmp_path}/jobs.db", "--level", "L3", "--budget", budget)
    done = run(installed, *words)
    sys.stdout.write(done.stdout)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_the_command_line_opens_its_urls(installed: dict[str, str], tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"

    enqueued = run(installed, "dibs", "enqueue", "emails", '{"to": "x"}', "--id", "a", "--url", url)
    shown = run(installed, "dibs", "counts", "--json", "--url", url)

    assert 0 == enqueued.returncode, enqueued.stderr
    assert '"waiting":1' in shown.stdout.replace(" ", "")
