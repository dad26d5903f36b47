"""A process of its own on a directory: it does what it is told on its input, line by line, and answers.

    python -m tests.storage.file.child ROOT [USER]

As that user, once all is imported: the project may lie where only its owner reads. Each line is JSON:
the name of a function below and its arguments.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from dibs.errors import DibsError
from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.file import FileStorage
from dibs.storage.file import checkpoint as growing

PROJECT = Path(__file__).parents[3]


class Child:
    """The other end: starts the process, tells it what to do, hears what came of it."""

    def __init__(self, root: Path, *before: str, user: str = "") -> None:
        command = [*before, sys.executable, "-m", "tests.storage.file.child", str(root), user]
        self.process = subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, verb: str, *words: Any) -> None:
        """Tell it what to do, without waiting for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *words]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child is gone: {self.process.wait()}"
        return json.loads(line)

    def ask(self, verb: str, *words: Any) -> Any:
        """Tell it what to do, and return what came of it; an error of ours comes as its name and text."""
        self.send(verb, *words)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


# -- what it can be told -----------------------------------------------------------------------------


async def enqueue(storage: FileStorage, ids: list[str], size: int = 0) -> str:
    jobs = [NewJob(id=id, data=JobData(payload=bytes(size))) for id in ids]
    requests = [EnqueueRequest(job=job) for job in jobs]
    for start in range(0, len(requests), 1000):
        await storage.enqueue("q", requests[start : start + 1000])
    return "done"


async def ids(storage: FileStorage) -> list[str]:
    return [id for id, _ in (await storage.list("q", "waiting", limit=100_000)).items]


async def claim(storage: FileStorage, now: int, ttl: int) -> list[Any]:
    lease = (await storage.grant(["q"], ttl, "child", now=now)).lease
    jobs = (await storage.claim("q", lease, 1, now=now)).jobs
    return [[job.id, job.run.fence] for job in jobs if job.run is not None]


async def complete(storage: FileStorage, id: str, fence: int) -> str:
    return (await storage.settle("q", [Settlement(id=id, fence=fence, action=Complete(result=b"1"))]))[
        0
    ].status


async def work(storage: FileStorage, log: str) -> int:
    """Claim and complete until nothing waits; write down when each run begins and ends."""
    book = os.open(log, os.O_WRONLY | os.O_APPEND)
    lease, done = (await storage.grant(["q"], 600_000, "child")).lease, 0
    while (await storage.counts(["q"]))["q"].waiting:
        for job in (await storage.claim("q", lease, 3)).jobs:
            assert job.run is not None
            os.write(book, f"begin {job.id} {job.run.fence}\n".encode())
            os.write(book, f"end {job.id} {job.run.fence}\n".encode())
            done += await complete(storage, job.id, job.run.fence) == "done"
    os.close(book)
    return done


async def churn(storage: FileStorage, turns: int) -> str:
    """Enqueue the same few ids again and again, so that others meet them in every state."""
    for turn in range(turns):
        await enqueue(storage, [f"shared-{turn % 3}"])
    return "done"


async def checkpoint(storage: FileStorage) -> str:
    await storage._on_thread(storage._checkpoint)
    return "done"


async def grown(storage: FileStorage) -> bool:
    """Whether a checkpoint is due."""
    return storage._replay.checkpoint_trigger.is_due


async def least(_: FileStorage, size: int) -> str:
    """From now on a checkpoint is due after this many bytes."""
    vars(growing)["MIN_COMMIT_BYTES"] = size
    return "done"


async def ballast(storage: FileStorage, size: int) -> str:
    """Take room on the disk of the directory, or give it back."""
    (storage._directory.root.parent / "ballast").write_bytes(bytes(size))
    return "done"


async def ids_anew(storage: FileStorage) -> list[str]:
    """What another process would read."""
    async with FileStorage(str(storage._directory.root), clock="manual") as other:
        return await ids(other)


async def largest_file(_: FileStorage, size: int) -> str:
    """From now on no file of this process may grow beyond this; -1 for any size."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size if size >= 0 else hard, hard))
    return "done"


async def wait(storage: FileStorage, seconds: float) -> bool:
    return (await storage.wait(["q"], timeout=seconds)).woken


VERBS: dict[str, Callable[..., Any]] = {
    verb.__name__: verb
    for verb in (
        enqueue,
        ids,
        ids_anew,
        claim,
        complete,
        work,
        churn,
        checkpoint,
        grown,
        least,
        ballast,
        largest_file,
        wait,
    )
}


async def answered(storage: FileStorage, verb: str, words: list[Any]) -> Any:
    try:
        return await VERBS[verb](storage, *words)
    except DibsError as error:
        return {"error": type(error).__name__, "says": str(error)}


def become(user: str) -> None:
    """Be another user from now on, with no rights of this one."""
    who = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(who.pw_gid)
    os.setuid(who.pw_uid)


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main(root: str) -> None:
    storage = FileStorage(root, clock="manual", poll=60.0)
    try:
        await storage.open()
    except DibsError as error:
        say({"error": type(error).__name__, "says": str(error)})
        return
    say("opened")
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *words = json.loads(line)
        say(await answered(storage, verb, words))
    await storage.close()


if __name__ == "__main__":
    if user := sys.argv[2]:
        become(user)
    asyncio.run(main(sys.argv[1]))
