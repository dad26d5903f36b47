"""The blocks marked `{.in-shell}` run in bash, on a storage with the jobs that the page speaks of."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, EncryptedSerde
from dibs.model.job import Error, NewJob
from dibs.model.requests import EnqueueRequest, Fail, HandOff, SettleAction, Settlement
from dibs.storage.registry import open_storage
from tests.cli.shell import Shell
from tests.cli.terminal import run_in_terminal
from tests.deploy.files import find_program
from tests.docs.pages import DOCS, Block, Page
from tests.source import PROJECT

HOUR = 3_600_000


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A folder with a storage; bash finds `dibs` and the Python of the tests there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name, words in {"dibs": "-m dibs", "python": ""}.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', "utf-8")
        program.chmod(0o755)
    return Shell(tmp_path)


def blocks(name: str) -> list[Block]:
    return [block for block in Page(name).blocks if block.has_mark("in-shell")]


def commands(block: Block) -> list[str]:
    return [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]


def type_in_bash(shell: Shell, command: str) -> str:
    """Run a line in bash, with `pipefail`, and return what it prints. It must exit with 0."""
    path = f"{shell.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"DIBS_URL": shell.url, "PATH": path, "HOME": str(shell.folder), "SHELL": "/bin/bash"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=shell.folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert (0, "") == (done.returncode, done.stderr), command
    return done.stdout


def in_storage(url: str, work: Callable[[Any], Coroutine[Any, Any, None]], clock: Any = "system") -> None:
    async def opened() -> None:
        async with open_storage(url, clock) as storage:
            await work(storage)

    asyncio.run(opened())


def ended(queue: str, ids: list[str], action: SettleAction, **now: int) -> Callable[[Any], Any]:
    """Return a step that enqueues jobs, claims them and settles their runs."""

    async def work(storage: Any) -> None:
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids], **now)
        lease = (await storage.grant([queue], 60_000, "test", **now)).lease
        jobs = (await storage.claim(queue, lease, len(ids), **now)).jobs
        await storage.settle(
            queue, [Settlement(id=job.id, fence=job.run.fence, action=action) for job in jobs], **now
        )

    return work


def failure(kind: str) -> Fail:
    return Fail(error=Error(type=kind, message=f"no {kind}"))


# -- howto/operate.md -------------------------------------------------------------------------------------


def test_completion_is_installed(shell: Shell) -> None:
    block = blocks("howto/operate.md")[0]
    for command in commands(block):
        type_in_bash(shell, command)

    assert "dibs" in (shell.folder / ".bashrc").read_text("utf-8")


def test_failures_of_a_service_are_listed_and_retried(shell: Shell) -> None:
    """The commands print the table and the question that the page shows."""
    block = blocks("howto/operate.md")[1]
    listing, retrying = re.split(r"^\$ .*\n", block.text, flags=re.MULTILINE)[1:]
    # The storage has its own clock, so the failures of earlier hours have it set by hand.
    now = int(time.time() * 1000)
    groups = [
        ("ValueError", ["c1007"], 49 * HOUR),
        ("ValueError", ["c1009"], 5 * HOUR + HOUR // 2),
        ("httpx.ConnectError", [f"c{number}" for number in range(1042, 1700)], 3 * HOUR + HOUR // 2),
        ("httpx.ConnectError", [f"c{number}" for number in range(1700, 2246)], HOUR // 5 + 30_000),
    ]
    for kind, ids, age in groups:
        in_storage(shell.url, ended("emails", ids, failure(kind), now=now - age), "manual")
    listed = run_in_terminal(shell, "failures")
    retried = run_in_terminal(shell, "retry", "--error", "ConnectError", typed="y\n")

    assert [0, 0] == [listed.code, retried.code]
    assert listing.splitlines() == without_progress(listed.text)
    # The terminal echoes the answer before the question, as it was typed at once.
    assert [] == [line for line in retrying.splitlines() if line.removesuffix("y") not in retried.text]


def without_progress(text: str) -> list[str]:
    """Return the lines of a terminal without the bars, which move while the command works."""
    return [line.lstrip("\r") for line in text.split("\n") if "\u2501" not in line and line.strip()]


@pytest.mark.long
def test_the_commands_of_operators(shell: Shell) -> None:
    """The commands limit a queue, finish a job that was handed off, and retry jobs from a script."""
    find_program("jq")
    in_storage(shell.url, ended("videos", ["cat.mp4"], HandOff()))
    in_storage(shell.url, ended("emails", ["welcome-1"], failure("TimeoutError")))
    revision = shell.json("show", "videos", "cat.mp4")["current"]["revisions"][1]
    printed = [
        type_in_bash(shell, re.sub(r"--revision \d+", f"--revision {revision}", command))
        for block in blocks("howto/operate.md")[2:]
        for command in commands(block)
    ]

    assert 5 == shell.json("configure", "emails")["settings"]["max_active"]
    assert {"frames": 250} == shell.json("show", "videos", "cat.mp4")["outcome"]["result"]["value"]
    assert "welcome-1\n" in printed
    assert '{\n  "emails": 1,\n  "videos": 0\n}\n' in printed
    assert "waiting" == shell.json("show", "emails", "welcome-1")["state"]


# -- howto/correct_the_clock.md ---------------------------------------------------------------------------


def test_jobs_move_to_a_new_storage_and_are_due_at_once(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1", "--id", "welcome-ada", "--delay", "864000")
    for block in blocks("howto/correct_the_clock.md"):
        for command in commands(block):
            type_in_bash(shell, command)
    target = f"file:{shell.folder}/jobs-new"

    assert 0 == shell.json("counts")["queues"]["emails"]["waiting"]
    assert 0 == shell.json("counts", "--url", target)["queues"]["emails"]["scheduled"]
    assert 1 == shell.json("counts", "--url", target)["queues"]["emails"]["waiting"]


# -- howto/flows.md ---------------------------------------------------------------------------------------


async def fail(table: str) -> str:
    raise OSError(table)


async def enqueue_nights(url: str) -> None:
    """Leave a night that has failed, and one that waits."""
    app = Dibs(url, flows=True)
    extract = app.task(queue="extract", max_retries=0)(fail)
    async with app:
        for day in ("01-31", "02-01"):
            flow = app.flow(id=f"night-2030-{day}")
            flow.add(extract.options(delay=0 if day == "01-31" else 3600).bind("orders"))
            await flow.enqueue()
            if day == "01-31":
                await app.work(until="empty", handle_signals=False)


@pytest.mark.long
def test_flows_are_listed_drawn_retried_and_cancelled(shell: Shell) -> None:
    asyncio.run(enqueue_nights(shell.url))
    (block,) = blocks("howto/flows.md")
    listed, drawn, *_ = [type_in_bash(shell, command) for command in commands(block)]
    states = {flow["id"]: flow["state"] for flow in shell.json("flow", "list")["flows"]}

    assert "night-2030-01-31" in listed
    assert "night-2030-02-01" not in listed
    assert "extract" in drawn
    assert (shell.folder / "night.mmd").read_text("utf-8").startswith("flowchart")
    assert "failed" != states.get("night-2030-01-31")
    assert "cancelled" == states.get("night-2030-02-01", "cancelled")


# -- howto/encrypt.md -------------------------------------------------------------------------------------


def test_the_command_prints_a_key(shell: Shell) -> None:
    (block,) = blocks("howto/encrypt.md")
    (command,) = commands(block)
    serde = EncryptedSerde(type_in_bash(shell, command).strip())

    assert b"ada" == serde.decode(serde.encode("ada")).encode()


# -- README.md --------------------------------------------------------------------------------------------


def test_the_first_program_runs_as_a_file(shell: Shell) -> None:
    """It needs no worker, and uses its own URL."""
    [program] = Page("README.md").files
    (shell.folder / program.title).write_text(program.text, "utf-8")
    [block] = blocks("README.md")
    [command] = commands(block)

    assert block.text.partition("\n")[2] == type_in_bash(shell, command)


def test_one_page_alone_says_how_to_install() -> None:
    """The name on the package index is not ours yet. An extra is named where dibs is installed already."""
    installs = re.compile(r"pip install (?:-U )?['\"]?dibs\b(?!\[)")
    pages = (PROJECT / "README.md", *DOCS.rglob("*.md"))

    assert [DOCS / "howto/install.md"] == [page for page in pages if installs.search(page.read_text("utf-8"))]


def test_each_marked_block_is_on_a_page_with_a_test() -> None:
    marked = {path.name for path in DOCS.rglob("*.md") if blocks(path.relative_to(DOCS).as_posix())}

    assert {"README.md", "operate.md", "correct_the_clock.md", "flows.md", "encrypt.md"} == marked
