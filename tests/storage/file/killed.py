"""A writer that is killed at its n-th step, for every n: a fork of one process for each, to be fast.

    python -m tests.storage.file.killed FOLDER

For n = 1, 2, … it works on FOLDER/n and dies, by SIGKILL to itself, just before the n-th call that touches
the file system. It prints how many of its steps were answered each time, as JSON, and ends once nobody died.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Fail, RetryLater, Settlement
from dibs.storage.file import FileStorage

#: What CPython tells an audit hook about, of what a commit or a checkpoint does.
TOUCHES = (
    "open",
    "fcntl.flock",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.scandir",
    "os.chmod",
    "os.truncate",
)

Step = Callable[[FileStorage], Awaitable[object]]


def request(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=id.encode() * 100)))


async def settle(storage: FileStorage, id: str, how: Complete | Fail | RetryLater) -> None:
    [slot] = await storage.get("q", [id])
    assert slot.current is not None
    assert slot.current.run is not None
    await storage.settle("q", [Settlement(id=id, fence=slot.current.run.fence, action=how)])


async def claim(storage: FileStorage) -> None:
    lease = (await storage.grant(["q"], 1000, "h", now=3000)).lease
    await storage.claim("q", lease, 2)


async def checkpoint(storage: FileStorage) -> None:
    await storage._on_thread(storage._checkpoint)


#: Each is at most one commit, but for the claim, which is a grant and a claim.
STEPS: tuple[Step, ...] = (
    lambda storage: storage.enqueue("q", [request("a"), request("b")], now=1000),
    lambda storage: storage.enqueue("q", [request("c")], now=2000),
    claim,
    lambda storage: storage.enqueue("q", [request("a")], now=3500),
    lambda storage: settle(storage, "a", Complete(result=b"1")),
    checkpoint,
    lambda storage: settle(storage, "b", Fail(error=Error(type="Oops"), handled=True)),
    checkpoint,
    lambda storage: storage.enqueue("q", [request("d")], now=4000),
)


async def work(root: Path, answered: int) -> None:
    """Do every step, and tell after each that it was answered."""
    async with FileStorage(str(root), clock="manual", fsync=True) as storage:
        for step in STEPS:
            await step(storage)
            os.write(answered, b".")


def die_at(count: int) -> None:
    """Kill this process just before the call of this number."""
    seen = 0

    def hook(event: str, _: tuple[object, ...]) -> None:
        nonlocal seen
        if event in TOUCHES:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def tried(root: Path, count: int) -> tuple[int, bool]:
    """Fork a writer that dies at its n-th call: how many steps were answered, and whether it died."""
    answers, told = os.pipe()
    if (pid := os.fork()) == 0:
        die_at(count)
        asyncio.run(work(root, told))
        os._exit(0)
    os.close(told)
    answered = 0
    while chunk := os.read(answers, 100):
        answered += len(chunk)
    os.close(answers)
    return answered, os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def main(folder: Path) -> None:
    count, died = 0, True
    while died:
        count += 1
        answered, died = tried(folder / str(count), count)
        sys.stdout.write(json.dumps([count, answered, died]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
