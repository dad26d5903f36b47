"""Every bad command line ends with its exit code, names its field, and writes nothing."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from tests.bad_input.commands import COMMANDS, Command
from tests.cli.shell import Shell
from tests.storage_urls import new_url


async def fill(url: str, name: str) -> None:
    async with Dibs(url) as app:
        await app.queue(name).enqueue(1, id="seen", delay=3600)


async def contents(url: str, name: str) -> Any:
    """Return all queues with their jobs and settings."""
    async with Dibs(url) as app:
        infos = await app.storage.queues()
        return sorted((info.name, info.settings) for info in infos if info.name.startswith(name)), [
            (await app.storage.export(info.name)).records for info in infos if info.name.startswith(name)
        ]


def try_command(shell: Shell, url: str, name: str, command: Command) -> str | None:
    """Run one command. Return a description of its wrong end, or None."""
    words = [
        name if word == "q" else word.replace("q!fail", f"{name}!fail") for word in shlex.split(command.words)
    ]
    result = shell.type(*words, url=url)
    if result.exit_code != command.code:
        return f"{command.words}: exit code {result.exit_code} instead of {command.code}: {result.output}"
    # An error is wrapped to the width of the terminal.
    if command.field not in " ".join(result.stderr.split()):
        return f"{command.words}: the error does not name {command.field!r}: {result.stderr}"
    return None


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["file", "redis", "postgresql"])
def test_all_commands(
    scheme: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url, name = new_url(scheme, request), f"bad-{os.urandom(4).hex()}"
    asyncio.run(fill(url, name))
    before = asyncio.run(contents(url, name))
    wrong = [found for one in COMMANDS if (found := try_command(Shell(tmp_path), url, name, one))]

    assert [] == wrong
    assert before == asyncio.run(contents(url, name))
