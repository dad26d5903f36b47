"""The way from Spark's blocking processes to a storage, and which storages can be reached from there.

A read or write of Spark is planned in one process and done in others, on this machine or elsewhere; none
of them is the driver's own Python.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dibs.client.connection.url import redact_url, resolve_url
from dibs.errors import Refused, StorageError, StorageUnavailable
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, scheme_of

T = TypeVar("T")


class Door:
    """A storage opened for blocking code: `with Door(url) as door: door.ask(door.storage.queues())`.

    Only with `new` is a folder made that is not there: an executor with one of its own would read and
    write beside the rest, and a reader has mistyped it.
    """

    def __init__(self, url: str, *, new: bool = False) -> None:
        self._url = url
        self._new = new
        self._runner = asyncio.Runner()
        self.storage: Storage = open_storage(url)

    def __enter__(self) -> Self:
        """Open it. Raises StorageUnavailable naming this machine and the URL without its secrets."""
        if not self._new:
            refuse_missing_folder(self._url)
        try:
            self.ask(self.storage.__aenter__())
        except BaseException as error:
            # Whatever it was: a loop left open is complained of much later, in somebody else's hour.
            self._runner.close()
            if isinstance(error, StorageError):
                raise StorageUnavailable(f"{here()} cannot open {redact_url(self._url)}: {error}") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.ask(self.storage.__aexit__(kind, error, trace))
        finally:
            self._runner.close()

    def ask(self, call: Coroutine[Any, Any, T]) -> T:
        """Do it, and return what it returns."""
        # Runner.run sets a handler for SIGINT around each call, and with that makes text of all it returned.
        return self._runner.get_loop().run_until_complete(call)


def here() -> str:
    """Return what to call this process: in a Spark task, the executor's machine and the task's place."""
    from pyspark import TaskContext  # noqa: PLC0415 - the driver needs a door without Spark as well

    name = f"{socket.gethostname()} (process {os.getpid()})"
    if (task := TaskContext.get()) is None:
        return name
    return (
        f"executor {name}, stage {task.stageId()}, partition {task.partitionId()}, "
        f"attempt {task.attemptNumber()},"
    )


def place_of(url: str | None) -> str:
    """Return the URL that counts, fit to be used by processes in other working directories.

    Raises Refused for a storage that no other process can open, NoStorage without any URL.
    """
    found = resolve_url(url)
    storage = open_storage(found)
    if not storage.capabilities.shared:
        raise Refused(
            f"{storage.url} lives in one process, and Spark reads and writes in others. Call dibs.spark.read "
            "or dibs.spark.enqueue, which do the work in the driver; or use a storage that others can open, "
            "as file:/shared/jobs, redis:// or postgresql://",
            field="url",
        )
    return _absolute(found)


def is_shared(url: str) -> bool:
    """Tell whether other processes can open what is at a URL."""
    return open_storage(url).capabilities.shared


def _absolute(url: str) -> str:
    folder = folder_of(url)
    if folder is None:
        return url
    return f"file:{folder.absolute()}{''.join(url.partition('?')[1:])}"


def folder_of(url: str) -> Path | None:
    """Return the folder of a file: URL; None for any other."""
    if scheme_of(url) != "file":
        return None
    path = url.partition("?")[0].partition(":")[2]
    return Path("/" + path.lstrip("/") if path.startswith("//") else path)


def refuse_missing_folder(url: str) -> None:
    """Refuse the folder of a file: URL that is not there. Raises StorageUnavailable."""
    folder = folder_of(url)
    if folder is not None and not folder.is_dir():
        raise StorageUnavailable(
            f"{here()} sees no directory {folder}. Is the path right? Spark can use a file: storage only "
            "where all of its machines mount the same path; Redis and Postgres need no such thing"
        )


def aside(ask: Callable[[], T]) -> T:
    """Ask on a thread of its own: in a notebook an event loop runs on this one, and a door has one too."""
    with ThreadPoolExecutor(1, thread_name_prefix="dibs-spark") as thread:
        return thread.submit(ask).result()
