"""A storage in a forked child, which has the objects of its parent but not its threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys
from dibs.errors import NotRunning
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.registry import open_storage

url = sys.argv[1]
storage = open_storage(url)

async def filled():
    await storage.open()
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])

async def child():
    for verb in (storage.get("q", ["a"]), storage.enqueue("q", [EnqueueRequest(job=NewJob(id="b"))])):
        try:
            print("answered", await verb)
        except NotRunning as error:
            print("refused", "fork" in str(error))
    await storage.close()
    async with open_storage(url) as anew:
        print("anew", (await anew.counts(["q"]))["q"].waiting)

asyncio.run(filled())
if os.fork() == 0:
    asyncio.run(child())
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(("scheme", "anew"), [("memory:forked", 0), ("file:", 1)])
def test_a_forked_child_is_refused_and_may_open_the_storage_again(
    tmp_path: Path, scheme: str, anew: int
) -> None:
    """The child neither waits for a missing thread nor runs jobs from its copy of the parent's memory."""
    url = scheme if scheme.startswith("memory") else f"file:{tmp_path}/jobs"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ["refused True", "refused True", f"anew {anew}"] == run.stdout.splitlines(), run.stderr
