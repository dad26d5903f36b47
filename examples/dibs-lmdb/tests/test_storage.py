"""Tests of URLs, of the folder, and of a process that is killed while it holds the lock of the folder."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dibs_lmdb import open_url, remove_url, temporary_url

from dibs.errors import ConfigurationError, StorageFull, UnknownOption
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest

#: A process that enqueues the job "kept", and is killed in the middle of a transaction.
KILLED_IN_A_STEP = """
import asyncio, os, signal, sys
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs_lmdb import open_url

async def main():
    async with open_url(sys.argv[1]) as storage:
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="kept"))])
        with storage._environment.step("", None, write=True) as step:
            step.put(b"half", b"x")
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def job(id: str, payload: bytes = b"") -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload)))


@pytest.mark.parametrize("url", ["lmdb://host/jobs", "lmdb:", "lmdb://"])
def test_a_url_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="absolute/path"):
        open_url(url)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownOption, match="map_size"):
        open_url("lmdb:./jobs?size=1")


def test_a_temporary_storage_is_removed(tmp_path: Path) -> None:
    url = temporary_url(f"lmdb://{tmp_path}/jobs?fsync=0", "a b")

    async def use() -> None:
        async with open_url(url) as storage:
            await storage.enqueue("q", [job("a")])
        await remove_url(url)

    asyncio.run(use())

    assert url.endswith("?fsync=0")
    assert list(tmp_path.iterdir()) == []


def test_two_objects_of_a_process_share_a_folder(tmp_path: Path) -> None:
    async def use() -> None:
        async with open_url(f"lmdb:{tmp_path}/jobs") as first:
            async with open_url(f"lmdb:{tmp_path}/jobs") as second:
                await second.enqueue("q", [job("a")])
            assert (await first.counts(["q"]))["q"].waiting == 1

    asyncio.run(use())


def test_a_process_that_is_killed_in_a_step_leaves_no_lock_and_no_half_step(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path}/jobs"
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_A_STEP, url], env=os.environ, check=False)

    async def use() -> None:
        async with open_url(url) as storage:
            await storage.enqueue("q", [job("later")])
            assert (await storage.counts(["q"]))["q"].waiting == 2

    asyncio.run(asyncio.wait_for(use(), 30))

    assert killed.returncode == -signal.SIGKILL


def test_a_full_folder_is_unchanged(tmp_path: Path) -> None:
    async def use() -> None:
        async with open_url(f"lmdb:{tmp_path}/jobs?map_size=400000") as storage:
            await storage.enqueue("q", [job("a")])
            with pytest.raises(StorageFull, match="map_size"):
                await storage.enqueue("q", [job("b"), job("c", b"x" * 500_000)])
            assert (await storage.counts(["q"]))["q"].waiting == 1

    asyncio.run(use())
