"""Which storage is meant, and the door to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from dibs.cli.files import folder_of
from dibs.cli.output import warn
from dibs.client.connection.url import resolve_url
from dibs.errors import Refused, StorageUnavailable
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage

T = TypeVar("T")


@asynccontextmanager
async def opened(url: str | None, *, new: bool = False) -> AsyncIterator[Storage]:
    """Open the place that is meant, if what is done there can outlive this command.

    A directory that is not there is made only if `new`: a look at a mistyped one should not make it.
    """
    storage = open_storage(resolve_url(url))
    refuse_short_lived(storage)
    folder = folder_of(storage.url)
    if not new and folder is not None and not folder.exists():
        raise StorageUnavailable(f"there is no directory {folder}; dibs enqueue or a worker would make it")
    async with storage:
        yield storage


def refuse_short_lived(storage: Storage) -> None:
    """Refuse a storage whose jobs live and die with the process that opened it."""
    abilities = storage.capabilities
    if not abilities.shared and not abilities.durable:
        raise Refused(
            f"{storage.url} lives inside one process: this command would look at an empty place of its own, "
            "and what it put there would be gone when it ends. Use one that others can open, as file:./jobs",
            field="url",
        )


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a verb's coroutine to its end."""
    return asyncio.run(work)


async def names_of_queues(storage: Storage, wanted: Sequence[str]) -> list[str]:
    """Return the queues that are meant: those that were named, else all there are."""
    known = sorted(info.name for info in await storage.queues())
    if not wanted:
        return known
    for name in sorted({*wanted} - {*known}):
        warn(f"queue {name!r} was never used here")
    return [*wanted]
