"""A writer that kills itself before its n-th file system call, for every n. Each n is a fork, to be fast.

    python -m tests.storage.file.killed_writer FOLDER

For n = 1, 2, … it works on FOLDER/n, and sends SIGKILL to itself before the n-th call that touches the file
system. For each n it prints, as JSON, how many of its steps returned. It ends at the first n that it
survives.
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

#: Audit events of CPython for the file system calls of commits and checkpoints.
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
    await storage._run_on_thread(storage._write_checkpoint)


#: Each step is at most one commit, except `claim`, which is a grant and a claim.
STEPS: tuple[Step, ...] = (
    lambda storage: storage.enqueue("q", [request("a"), request("b")], now=1000),
    lambda storage: storage.enqueue("q", [request("c")], now=2000),
    claim,
    lambda storage: storage.enqueue("q", [request("a")], now=3500),
    lambda storage: settle(storage, "a", Complete(result=b"1")),
    checkpoint,
    lambda storage: settle(storage, "b", Fail(error=Error(type="Oops"))),
    checkpoint,
    lambda storage: storage.enqueue("q", [request("d")], now=4000),
)


async def work(root: Path, answered: int) -> None:
    """Run every step, and write one byte to `answered` after each."""
    async with FileStorage(str(root), clock="manual", fsync=True) as storage:
        for step in STEPS:
            await step(storage)
            os.write(answered, b".")


def die_at(count: int) -> None:
    """Kill this process before the `count`-th call."""
    seen = 0

    def hook(event: str, _: tuple[object, ...]) -> None:
        nonlocal seen
        if event in TOUCHES:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def tried(root: Path, count: int) -> tuple[int, bool]:
    """Fork a writer that dies at its `count`-th call; return how many steps returned, and whether it died."""
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
