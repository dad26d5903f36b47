"""The programs of blocks marked `{.until-ctrl-c}` start, print what the page shows, serve, and end by Ctrl-C.

All programs of a block run at the same time. A server gets a free port in place of its usual one, and a
storage on Redis becomes one in the folder of the test.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psutil
import pytest

from tests.cli.shell import Shell
from tests.docs.pages import DOCS, Block, Page

#: The first words of a server -> its usual port.
PORTS = {"dibs web": 8321, "dibs metrics": 9464, "flask": 5000, "uvicorn": 8000}
#: The first line of a worker, which no page has to show.
WORKER_STARTS = re.compile(r"^dibs worker at file:", re.MULTILINE)
#: Seconds that a program has to start or to end, on a machine that does other things.
PATIENCE = 120
BLOCKS = [
    pytest.param(name, block, id=f"{name}:{block.text.splitlines()[0]}")
    for name in sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    for block in Page(name).blocks
    if block.has_mark("until-ctrl-c")
]


@pytest.fixture(autouse=True)
def sigint() -> Iterator[None]:
    """Make SIGINT end the programs, also if a shell has started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Program(NamedTuple):
    """A command of a block, with the lines that the page shows below it."""

    words: list[str]
    shown: list[str]
    port: int | None

    @property
    def expected(self) -> list[re.Pattern[str]]:
        """Patterns of the lines that the program must print: its own port, any token and any folder."""
        texts: Iterator[str] = map(re.escape, self.shown)
        if (usual := usual_port(self.words)) is not None:
            texts = (text.replace(f":{usual}/", f":{self.port}/") for text in texts)
        tokens = (re.sub(r"token=.*", r"token=\\S{20,}", text) for text in texts)
        folders = (text.replace("/srv/shop/", r"/\S*/") for text in tokens)
        lines = [re.compile(f"^{text}$", re.MULTILINE) for text in folders]
        return lines or [WORKER_STARTS] * (self.port is None)


def usual_port(words: list[str]) -> int | None:
    return next(
        (port for start, port in PORTS.items() if f"{' '.join(words)} ".startswith(f"{start} ")), None
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def programs(block: Block) -> Iterator[Program]:
    """Yield the programs of a block, without the installation before them."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        words = shlex.split(command)
        if words[0] != "pip":
            yield Program(words, shown, None if usual_port(words) is None else free_port())


@contextmanager
def running(program: Program, folder: Path, url: str) -> Iterator[None]:
    """Run a program until the end of the block. It must print the lines of the page, and end with code 0."""
    words = ["file:./jobs" if word == "redis://localhost" else word for word in program.words]
    words += [] if program.port is None else ["--port", str(program.port)]
    env = os.environ | {"DIBS_URL": url, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    output = folder / f"{words[0]}-{words[1]}.log"
    with output.open("wb") as file:
        # Ctrl-C signals the whole group of a command.
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=folder,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        wait_for_start(program, process, output)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        code = process.wait(PATIENCE)

    assert 0 == code, output.read_text("utf-8")
    assert "Traceback" not in output.read_text("utf-8")


def wait_for_start(program: Program, process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not (started(program, output.read_text("utf-8")) and is_ready(program, process.pid)):
        text = output.read_text("utf-8")
        assert process.poll() is None, text
        assert time.monotonic() < end, f"{program.expected} is not in:\n{text}"
        time.sleep(0.05)


def started(program: Program, text: str) -> bool:
    """Return whether the program has printed what the page shows, and answers on its port."""
    return all(line.search(text) for line in program.expected) and (
        program.port is None or answers(program.port)
    )


def is_ready(program: Program, pid: int) -> bool:
    """Return whether a worker has processes, which its fork server starts: from then on Ctrl-C stops it.

    Before, for some milliseconds after its first lines, Ctrl-C interrupts it with another exit code.
    """
    if program.words[:2] != ["dibs", "worker"]:
        return True
    return any(child.children() for child in psutil.Process(pid).children())


def answers(port: int) -> bool:
    """Return whether a server answers on a port; any answer but a fault of the server is one."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE):
            return True
    except HTTPError as error:
        return error.code < 500
    except (URLError, ConnectionError):
        return False


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A folder with a storage that has a job, and with its history."""
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path)
    shell.type("enqueue", "emails", '{"to": "ada"}')
    return shell


@pytest.mark.long
@pytest.mark.parametrize(("name", "block"), BLOCKS)
def test_the_programs_start_as_shown_and_end_by_ctrl_c(name: str, block: Block, project: Shell) -> None:
    Page(name).save(project.folder)
    if "--warehouse" in block.text:
        project.type("spark", "history", "--url", project.url, "--warehouse", "./history")
    with ExitStack() as stack:
        for program in programs(block):
            stack.enter_context(running(program, project.folder, project.url))


def test_blocks_are_found() -> None:
    assert len(BLOCKS) >= 8


def test_a_line_that_the_program_does_not_print_is_found(project: Shell) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(PATIENCE)
    (project.folder / "out").write_text("The metrics are at http://127.0.0.1:1/metrics\n")
    program = Program(["dibs", "worker", "shop:app"], ["dibs worker at redis:"], None)

    with pytest.raises(AssertionError, match="The metrics are at"):
        wait_for_start(program, process, project.folder / "out")
