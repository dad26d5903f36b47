"""Running `dibs` in tests: in this process for speed, or as a new process for exit codes and signals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from dibs.cli.main import app
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage

#: Command line of a new process, which works without an installed `dibs` script.
DIBS = (sys.executable, "-c", "from dibs.cli.main import main; main()")
#: Environment variables that change the look of help; the tests remove them.
PLAIN: dict[str, str | None] = dict.fromkeys(("FORCE_COLOR", "TERMINAL_WIDTH", "RICH_CLICK_THEME"))


class Shell:
    """Runs `dibs` commands in one folder, with one storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder}/jobs"

    def type(self, *words: str, url: str | None = None, stdin: str | None = None) -> Result:
        env = {"DIBS_URL": url or self.url, "COLUMNS": "100", **PLAIN}
        return CliRunner(env=env).invoke(app, words, input=stdin)

    def json(self, *words: str, code: int = 0) -> Any:
        """Return the JSON that a command prints; it must exit with this code."""
        result = self.type(*words, "--json")

        assert (code, "") == (result.exit_code, result.stderr)
        return json.loads(result.stdout)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a process without DIBS_URL."""
        env = {name: value for name, value in os.environ.items() if name != "DIBS_URL"}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([*DIBS, *words], cwd=self.folder, env=env, text=True, **options)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def storage(self) -> Storage:
        return open_storage(self.url)


async def claim_one(storage: Storage, queue: str) -> int:
    """Claim the one job that is due, and return its fence."""
    lease = (await storage.grant([queue], 60_000, "test")).lease
    (job,) = (await storage.claim(queue, lease, 1)).jobs
    assert job.run is not None
    return job.run.fence


def in_storage(shell: Shell, work: Any) -> Any:
    """Run the coroutine function `work` with the open storage, from a test that is not async."""
    import asyncio

    async def opened() -> Any:
        async with shell.storage() as storage:
            coroutine: Coroutine[Any, Any, Any] = work(storage)
            return await coroutine

    return asyncio.run(opened())
