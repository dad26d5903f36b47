"""Running `dibs` in a terminal, as a person sees it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
from typing import NamedTuple

from tests.cli.shell import DIBS, PLAIN, Shell


class Screen(NamedTuple):
    """The text that a command wrote to a terminal, and its exit code."""

    code: int
    #: The text without colours and other control sequences.
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def run_in_terminal(
    shell: Shell, *words: str, typed: str = "", columns: int = 80, ctrl_c_after: str = ""
) -> Screen:
    """Run `dibs` in a terminal of this width, type a text, and return what it shows.

    `ctrl_c_after` is a text after which the command gets a Ctrl-C.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    removed = {*PLAIN, "COLUMNS", "LINES"}
    env = {name: value for name, value in os.environ.items() if name not in removed}
    env |= {"DIBS_URL": shell.url, "TERM": "xterm"}
    process = subprocess.Popen(
        [*DIBS, *words], cwd=shell.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    found = b""
    while ctrl_c_after.encode() not in found:
        found += os.read(ours, 65_536)
    if ctrl_c_after:
        process.send_signal(signal.SIGINT)
    text = (found + read_to_end(ours)).decode()
    return Screen(process.wait(30), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n"))


def read_to_end(terminal: int) -> bytes:
    """Read what is written to a terminal until all processes have closed it, and close it."""
    found = b""
    try:
        while part := os.read(terminal, 65_536):
            found += part
    except OSError:
        # Linux reports the end in this way.
        pass
    finally:
        os.close(terminal)
    return found
