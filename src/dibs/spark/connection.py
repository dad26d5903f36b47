"""The blocking connection of Spark's Python processes to a storage, and the checks of its URL.

Spark plans a read or a write in one Python process and runs its tasks in other processes, on this
machine or on executors. Each process opens its own connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dibs.client.connection.storage_handle import resolve_url
from dibs.errors import Refused, StorageError, StorageUnavailable
from dibs.model.error_text import summarize_exception
from dibs.model.worker_record import without_reserved
from dibs.storage.addresses import parse_file_path, redact_url
from dibs.storage.protocol import LATEST, Storage
from dibs.storage.registry import open_storage, parse_scheme

T = TypeVar("T")


class StorageConnection:
    """A storage opened for blocking code, with its own event loop.

        with StorageConnection(url) as connection:
            connection.run(connection.storage.queues())

    The directory of a `file:` URL is created only with `create`. By default a missing directory is an
    error, because it means a wrong path or a file system that is not mounted. An executor that created the
    directory would read and write a separate, empty storage.
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        self._url = url
        self._create = create
        self._runner = asyncio.Runner()
        self.storage: Storage = open_storage(url)

    def __enter__(self) -> Self:
        """Open the storage.

        Raise StorageUnavailable with the name of this machine and the URL without its password.
        """
        if not self._create:
            check_directory(self._url)
        try:
            self.run(self.storage.__aenter__())
        except BaseException as error:
            # Close the loop on every error: an open loop raises a ResourceWarning later, in unrelated code.
            self._runner.close()
            if isinstance(error, StorageError):
                raise StorageUnavailable(
                    f"{describe_process()} cannot open {redact_url(self._url)}: {summarize_exception(error)}"
                ) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.storage.__aexit__(kind, error, trace))
        finally:
            self._runner.close()

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of this connection and return its result."""
        # asyncio.Runner.run would set a SIGINT handler around each call, which formats the whole result as
        # text.
        return self._runner.get_loop().run_until_complete(operation)

    def queue_names(self) -> list[str]:
        """Return the names of all queues of the storage."""
        return [info.name for info in without_reserved(self.run(self.storage.queues()))]

    def log_end(self, queue: str) -> str:
        """Return the offset of the newest event in the log of a queue; "" if the log is empty."""
        return self.run(self.storage.events(queue, after=LATEST, limit=1)).offset


def describe_process() -> str:
    """Return a name of this process for error messages.

    In a Spark task, the name has the executor's host, the stage, the partition and the attempt.
    """
    name = f"{socket.gethostname()} (process {os.getpid()})"
    # Only a process that has imported pyspark can be a task.
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or (task := pyspark.TaskContext.get()) is None:
        return name
    return (
        f"executor {name}, stage {task.stageId()}, partition {task.partitionId()}, "
        f"attempt {task.attemptNumber()},"
    )


def shared_url(url: str | None) -> str:
    """Return a URL that names the same storage in every process.

    The default URL is filled in, and the path of a `file:` URL is absolute.

    Raise Refused for a storage that other processes cannot open, and NoStorage if no URL is set.
    """
    found = resolve_url(url)
    storage = open_storage(found)
    if not storage.capabilities.shared:
        raise Refused(
            f"{storage.url} exists only in this process, but Spark reads and writes in other processes. Call "
            "dibs.spark.read or dibs.spark.enqueue, which work in the driver, or use a shared storage: "
            "file:/shared/jobs, redis:// or postgresql://",
            field="url",
        )
    return found


def is_shared(url: str) -> bool:
    """Return whether other processes can open the storage at this URL."""
    return open_storage(url).capabilities.shared


def absolute_location(location: str) -> str:
    """Return a URI unchanged, and a path as an absolute path, which is valid in every working directory."""
    return location if "://" in location else str(Path(location).absolute())


def directory_of(url: str) -> Path | None:
    """Return the directory of a `file:` URL, or None for another scheme."""
    if parse_scheme(url) != "file":
        return None
    return Path(parse_file_path(url))


def check_directory(url: str) -> None:
    """Raise StorageUnavailable if the directory of a `file:` URL does not exist on this machine."""
    folder = directory_of(url)
    if folder is not None and not folder.is_dir():
        raise StorageUnavailable(
            f"{describe_process()} finds no directory {folder}. Check the path. Spark can use a file: "
            "storage only if all its machines mount the same path; Redis and Postgres need no shared path"
        )


def run_in_thread(function: Callable[[], T]) -> T:
    """Call `function` in a new thread and return its result.

    In a notebook an event loop already runs in this thread, and a StorageConnection runs another.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="dibs-spark") as thread:
        return thread.submit(function).result()
