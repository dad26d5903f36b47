"""`dibs worker` beside the logging of an application, and with closed standard streams."""

from __future__ import annotations

import asyncio
import subprocess
from itertools import pairwise

import pytest

from tests.cli.shell import DIBS, Shell
from tests.cli.terminal import run_in_terminal
from tests.cli.test_worker import ended

APPLICATION = """
import logging
import logging.config
import os

{setup}
from dibs import Dibs

app = Dibs()


@app.task(queue="fails", max_retries=0)
def fails() -> None:
    raise ValueError("boom")


@app.task(queue="completes")
def completes() -> None: ...


@app.task(queue="dies", max_stalls=0)
def dies() -> None:
    os._exit(3)


@app.task(queue="closes")
def closes() -> None:
    import sys

    sys.stdout.close()
    sys.stderr.close()
"""

BASIC = 'logging.basicConfig(level="INFO", format="MINE: %(message)s")'
TO_FILE = 'logging.basicConfig(level="INFO", filename="app.log", format="MINE: %(message)s")'
DIBS_TO_FILE = 'logging.getLogger("dibs").addHandler(logging.FileHandler("app.log"))'
#: The default of disable_existing_loggers disables the loggers of dibs.
DICT = """
import dibs.worker
handlers = {"console": {"class": "logging.StreamHandler", "formatter": "mine"}}
logging.config.dictConfig({
    "version": 1, "formatters": {"mine": {"format": "MINE: %(message)s"}}, "handlers": handlers,
    "root": {"level": "INFO", "handlers": ["console"]},
})
"""


def run_job(shell: Shell, queue: str, *words: str, setup: str = "") -> tuple[int, str]:
    """Run one job of a queue, stop the worker, and return its exit code and standard error."""
    (shell.folder / "logged.py").write_text(APPLICATION.replace("{setup}", setup))
    shell.type("enqueue", queue, '{"args": []}', "--id", "a")
    worker = shell.start("worker", "logged:app", "--url", shell.url, *words)
    asyncio.run(ended(shell, queue))
    worker.terminate()
    _, err = worker.communicate(timeout=60)
    return worker.returncode, err


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("setup", [BASIC, DICT], ids=["basicConfig", "dictConfig"])
def test_the_logging_of_the_application_is_kept(shell: Shell, setup: str, processes: str) -> None:
    _, err = run_job(shell, "fails", "--processes", processes, setup=setup)

    lines = [line for line in err.splitlines() if "fails/a" in line]
    assert 1 == len(lines)
    assert lines[0].startswith("MINE: ")


@pytest.mark.long
@pytest.mark.parametrize("setup", [TO_FILE, DICT], ids=["file", "dictConfig"])
def test_a_crash_is_seen_on_stderr(shell: Shell, setup: str) -> None:
    _, err = run_job(shell, "dies", "--processes", "1", setup=setup)

    assert "exited with code 3" in err


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("setup", [TO_FILE, DIBS_TO_FILE], ids=["root", "dibs"])
def test_an_application_that_logs_to_a_file_has_lines_in_both(
    shell: Shell, setup: str, processes: str
) -> None:
    _, err = run_job(shell, "fails", "--processes", processes, setup=setup)

    assert 1 == len([line for line in err.splitlines() if "fails/a" in line])
    assert "fails/a" in (shell.folder / "app.log").read_text()


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize(("level", "number"), [("debug", 1), ("error", 0)])
def test_the_level_of_the_lines_can_be_set(shell: Shell, level: str, processes: str, number: int) -> None:
    """A run that completes is a line of the level debug."""
    _, err = run_job(shell, "completes", "--processes", processes, "--log-level", level)

    assert number == err.count("completes/a")


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_job_that_closes_the_streams_ends_no_worker(shell: Shell, processes: str) -> None:
    code, err = run_job(shell, "closes", "--processes", processes, "--log-level", "debug")

    assert (0, "completed") == (code, shell.json("show", "closes", "a")["outcome"]["kind"])
    assert "Logging error" not in err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_worker(shell: Shell, closed: str) -> None:
    (shell.folder / "logged.py").write_text(APPLICATION.replace("{setup}", ""))
    shell.type("enqueue", "fails", '{"args": []}', "--id", "a")
    python, *words = DIBS
    command = f'exec "$0" "$@" {closed}'
    arguments = [*words, "worker", "logged:app", "--url", shell.url, "--processes", "1"]
    worker = subprocess.Popen(["/bin/sh", "-c", command, python, *arguments], cwd=shell.folder)
    asyncio.run(ended(shell, "fails"))
    worker.terminate()
    worker.communicate(timeout=60)

    assert 0 == worker.returncode


def test_in_a_terminal_control_characters_of_ids_and_errors_are_escaped(shell: Shell) -> None:
    (shell.folder / "rude.py").write_text(
        "from dibs import Dibs\napp = Dibs()\n"
        '@app.task(queue="rude", max_retries=0)\n'
        'def rude():\n    raise ValueError("\\x1b]0;owned\\x07 \\x9b2J")\n'
    )
    shell.type("enqueue", "rude", '{"args": [], "kwargs": {}}', "--id", "\x1b]0;id\x07")
    screen = run_in_terminal(shell, "worker", "rude:app", "--processes", "1", "--until", "empty")

    assert 0 == screen.code
    assert r"\x1b]0;id\x07" in screen.text
    assert r"\x1b]0;owned\x07" in screen.text
    assert not {"\x1b]", "\x07", "\x9b"} & {*screen.text, *(a + b for a, b in pairwise(screen.text))}
