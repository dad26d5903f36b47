"""A child process with a file storage: it executes the commands on its stdin and prints each result.

    python -m tests.storage.file.child_process ROOT [USER]

With USER, the process changes its user after all imports, because that user may not be able to read the
project. Each command is a line of JSON: the name of a function below and its arguments.
"""

from __future__ import annotations

import asyncio

# asyncio imports this module at the first use of a thread. The user of `become` may not read it then.
import concurrent.futures.thread  # noqa: F401
import json
import os
import pwd
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dibs.errors import DibsError
from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.file import FileStorage
from dibs.storage.file import checkpoint as checkpoint_module

PROJECT = Path(__file__).parents[3]


class Child:
    """The parent's side: starts the process, sends commands and reads results."""

    def __init__(self, root: Path, *before: str, user: str = "") -> None:
        command = [*before, sys.executable, "-m", "tests.storage.file.child_process", str(root), user]
        self.process = subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, verb: str, *args: Any) -> None:
        """Send a command without waiting for its result."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *args]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child is gone: {self.process.wait()}"
        return json.loads(line)

    def ask(self, verb: str, *args: Any) -> Any:
        """Send a command and return its result. An error of dibs is a dictionary of its type and message."""
        self.send(verb, *args)
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


# -- commands -------------------------------------------------------------------------


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


async def complete(storage: FileStorage, id: str, fence: int, size: int = 1) -> str:
    """Complete a run with a result of this size."""
    action = Complete(result=bytes(size))
    return (await storage.settle("q", [Settlement(id=id, fence=fence, action=action)]))[0].status


async def cancel(storage: FileStorage, ids: list[str]) -> str:
    await storage.cancel("q", ids)
    return "done"


async def forget(storage: FileStorage, ids: list[str]) -> str:
    await storage.forget("q", ids)
    return "done"


async def checkpoint(storage: FileStorage) -> str:
    await storage._run_on_thread(storage._write_checkpoint)
    return "done"


async def checkpoint_is_due(storage: FileStorage) -> bool:
    """Return whether a checkpoint is due."""
    return storage._replay.checkpoint_trigger.is_due


async def least(_: FileStorage, size: int) -> str:
    """Make a checkpoint due after this many bytes of commits, from now on."""
    vars(checkpoint_module)["MIN_COMMIT_BYTES"] = size
    return "done"


async def ballast(storage: FileStorage, size: int) -> str:
    """Write a file of this size to the disk of the directory; 0 frees the space again."""
    (storage._directory.root.parent / "ballast").write_bytes(bytes(size))
    return "done"


async def fill_disk(storage: FileStorage) -> str:
    """Write to the file of `ballast` until the disk of the directory has no space."""
    with (storage._directory.root.parent / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    return "done"


async def ids_from_disk(storage: FileStorage) -> list[str]:
    """Return the waiting ids that a new storage reads."""
    async with FileStorage(str(storage._directory.root), clock="manual") as other:
        return await ids(other)


async def largest_file(_: FileStorage, size: int) -> str:
    """Limit the size of the files that this process writes; -1 removes the limit."""
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
        ids_from_disk,
        claim,
        complete,
        cancel,
        forget,
        fill_disk,
        checkpoint,
        checkpoint_is_due,
        least,
        ballast,
        largest_file,
        wait,
    )
}


async def answered(storage: FileStorage, verb: str, args: list[Any]) -> Any:
    try:
        return await VERBS[verb](storage, *args)
    except DibsError as error:
        return {"error": type(error).__name__, "message": str(error)}


def become(user: str) -> None:
    """Change the user of this process, without keeping any rights."""
    who = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(who.pw_gid)
    os.setuid(who.pw_uid)


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main(root: str) -> None:
    allowed = os.environ.get("DIBS_TEST_ALLOW_OTHERS") == "1"
    storage = FileStorage(root, clock="manual", poll=60.0, allow_others=allowed)
    try:
        await storage.open()
    except DibsError as error:
        say({"error": type(error).__name__, "message": str(error)})
        return
    say("opened")
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *args = json.loads(line)
        say(await answered(storage, verb, args))
    await storage.close()


if __name__ == "__main__":
    if user := sys.argv[2]:
        become(user)
    asyncio.run(main(sys.argv[1]))
