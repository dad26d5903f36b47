"""How these tests type: in this process for speed, in one of its own where exit codes and signals count."""

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

#: A new process for each command: the coverage of an installed `dibs` without needing one.
DIBS = (sys.executable, "-c", "from dibs.cli.main import main; main()")
#: What whoever runs the tests may wish help to look like.
PLAIN: dict[str, str | None] = dict.fromkeys(("FORCE_COLOR", "TERMINAL_WIDTH", "RICH_CLICK_THEME"))


class Shell:
    """Types `dibs` words at one place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder}/jobs"

    def type(self, *words: str, url: str | None = None, stdin: str | None = None) -> Result:
        env = {"DIBS_URL": url or self.url, "COLUMNS": "100", **PLAIN}
        return CliRunner(env=env).invoke(app, words, input=stdin)

    def json(self, *words: str, code: int = 0) -> Any:
        """The JSON that a verb prints, which left with this code."""
        result = self.type(*words, "--json")

        assert (code, "") == (result.exit_code, result.stderr)
        return json.loads(result.stdout)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A process that was not told any URL but its own."""
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
    """Run `work(storage)` on the place, from a test that is not async because click's verbs are not."""
    import asyncio

    async def opened() -> Any:
        async with shell.storage() as storage:
            coroutine: Coroutine[Any, Any, Any] = work(storage)
            return await coroutine

    return asyncio.run(opened())
