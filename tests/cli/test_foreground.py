"""`dibs worker` draws its table only in the foreground of a shell, and nothing over a prompt."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.shell import DIBS, Shell
from tests.cli.test_worker import APPLICATION, ended

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="this machine has no bash")

#: A text that only the live table prints.
TABLE = b"timeouts"
HIDE_CURSOR = b"\x1b[?25l"


#: Take stdin as the terminal of this session, so that bash has job control.
TAKE_TERMINAL = (
    "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"
)


class Bash:
    """An interactive bash in a terminal of its own."""

    def __init__(self, shell: Shell) -> None:
        self.terminal, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL],
            cwd=shell.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def type(self, line: str) -> None:
        os.write(self.terminal, f"{line}\n".encode())

    def read_until(self, text: bytes) -> None:
        while text not in self.shown:
            self.shown += os.read(self.terminal, 4096)

    def end(self) -> None:
        self.type("exit")
        self.process.wait(30)
        os.close(self.terminal)


@pytest.fixture
def command(shell: Shell) -> str:
    (shell.folder / "my_app.py").write_text(APPLICATION)
    shell.type("enqueue", "double", '{"args": [21]}', "--id", "a")
    script = shell.folder / "dibs"
    script.write_text(f'#!/bin/sh\nexec {DIBS[0]} -m dibs "$@"\n')
    script.chmod(0o755)
    return f"./dibs worker my_app:app --processes 0 --url {shell.url}"


def test_a_worker_in_the_background_draws_no_table(shell: Shell, command: str) -> None:
    bash = Bash(shell)
    bash.type(f"{command} &")
    asyncio.run(ended(shell, "double"))
    bash.type("kill %1; wait")
    bash.read_until(b"stopped: 1 completed")
    bash.end()

    assert [False, False] == [TABLE in bash.shown, HIDE_CURSOR in bash.shown]


@pytest.mark.parametrize("option", ["", "--reload"])
def test_a_worker_in_the_foreground_draws_its_table(shell: Shell, command: str, option: str) -> None:
    bash = Bash(shell)
    bash.type(f"{command} {option}")
    bash.read_until(TABLE)
    asyncio.run(ended(shell, "double"))
    os.write(bash.terminal, b"\x03")
    bash.read_until(b"stopped: 1 completed")
    bash.end()

    assert HIDE_CURSOR in bash.shown
