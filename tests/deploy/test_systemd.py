"""The units of systemd: systemd accepts them, and their command lines exist."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, find_program, parse_command

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/srv/shop/venv/bin/dibs"


def service(path: Path) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    # The names of systemd are case-sensitive.
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    return unit["Service"]


def verify(text: str, folder: Path) -> str:
    """Return the complaints of systemd about a unit, with a program that exists on this machine."""
    unit = folder / "dibs.service"
    unit.write_text(text.replace(PROGRAM, sys.executable))
    command = [find_program("systemd-analyze"), "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # systemd also complains about other units of the machine.
    return "\n".join(line for line in done.stderr.splitlines() if unit.name in line)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_it(path: Path, tmp_path: Path) -> None:
    assert "" == verify(path.read_text("utf-8"), tmp_path)


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("KillMode=mixed", "KillMode=some", "kill mode"),
        ("TimeoutStopSec=", "TimeoutStopSecs=", "TimeoutStopSecs"),
    ],
)
def test_systemd_finds_a_mistake(right: str, wrong: str, complaint: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/dibs-worker.service").read_text("utf-8")

    assert right in text
    assert complaint in verify(text.replace(right, wrong), tmp_path)


def test_there_is_a_unit_for_each_program() -> None:
    assert ["dibs-metrics", "dibs-web", "dibs-worker"] == [path.stem for path in UNITS]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_command_line_exists_and_another_user_than_root_runs_it(path: Path) -> None:
    found = service(path)
    program, command = found["ExecStart"].split()[:2]

    assert (PROGRAM, path.stem) == (program, f"dibs-{command}")
    assert parse_command(found["ExecStart"])
    assert found["User"] not in {"", "root"}


def test_systemd_waits_longer_than_the_grace() -> None:
    found = service(DEPLOY / "systemd/dibs-worker.service")

    assert int(found["TimeoutStopSec"]) >= parse_command(found["ExecStart"])["grace"] + 5
    assert "2" == found["RestartPreventExitStatus"]
