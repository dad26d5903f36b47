"""Access of commands to the storage: open it, refuse `memory:` URLs, and select queues by name."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path

from dibs.cli.file_listing import file_url_directory
from dibs.cli.output import ExitCode, print_warning
from dibs.client.connection.storage_handle import resolve_url
from dibs.errors import Refused, StorageUnavailable
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, parse_scheme


@asynccontextmanager
async def connect(url: str | None, *, create: bool = False) -> AsyncIterator[Storage]:
    """Open the storage of --url, $DIBS_URL or pyproject.toml for a `with` block.

    The directory of a file: URL must exist, so that a mistyped path is an error. With `create` a missing
    directory is created. Raises Refused for a storage such as `memory:`, whose jobs end with this process.
    """
    async with find_storage(url, create=create) as storage:
        yield storage


def find_storage(url: str | None, *, create: bool = False) -> Storage:
    """Return the storage that `connect` opens, not yet open. It raises the errors of `connect`."""
    url = resolve_url(url)
    if parse_scheme(url) == "django":
        # Django's settings are a module of the project, and the script `dibs` does not search this directory.
        sys.path.insert(0, str(Path.cwd()))
    storage = open_storage(url)
    check_outlives_command(storage)
    directory = file_url_directory(storage.url)
    if not create and directory is not None and not directory.exists():
        raise StorageUnavailable(
            f"there is no directory {directory}: check the path; dibs enqueue and dibs worker create it"
        )
    return storage


def check_outlives_command(storage: Storage) -> None:
    """Raise Refused for a storage whose jobs exist only in the process that opened it."""
    capabilities = storage.capabilities
    if not capabilities.shared and not capabilities.durable:
        raise Refused(
            f"{storage.url} exists only inside one process: this command would open an empty storage, and "
            "lose it when it ends. Use a URL that other processes can open, for example file:./jobs",
            field="url",
        )


async def select_queues(storage: Storage, wanted: Sequence[str]) -> tuple[list[str], ExitCode]:
    """Return the queues in `wanted`, or all queues of the storage, sorted.

    Warn about names that are not in the storage; the exit code is then REFUSED.
    """
    known = sorted(info.name for info in await storage.queues())
    if not wanted:
        return [name for name in known if name != WORKERS_QUEUE], ExitCode.DONE
    unknown = sorted({*wanted} - {*known})
    for name in unknown:
        print_warning(f"queue {name!r} does not exist in {storage.url}; {_suggest_name(name, known)}")
    return [*wanted], ExitCode.REFUSED if unknown else ExitCode.DONE


async def warn_of_new_queue(storage: Storage, queue: str) -> None:
    """Warn that a queue, whose settings a command will change, is not in the storage: it may be mistyped."""
    known = sorted(info.name for info in await storage.queues())
    if queue not in known:
        print_warning(f"queue {queue!r} is new in {storage.url}; {_suggest_name(queue, known)}")


def _suggest_name(name: str, known: Sequence[str]) -> str:
    similar = get_close_matches(name, known, 1)
    return f"did you mean {similar[0]!r}?" if similar else "`dibs show` lists the queues"
