"""Access of commands to the storage: open it, select queues, read pages, and list its files."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from dibs.cli.output import ExitCode, print_warning
from dibs.client.connection.storage_handle import URL_VARIABLE, resolve_url
from dibs.errors import Refused, StorageUnavailable
from dibs.model.results import ListPage, State
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.addresses import parse_file_path
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, parse_scheme

if TYPE_CHECKING:
    from dibs.app import Dibs

#: File or folder in the directory of a file storage -> explanation. A test compares the names with a real
#: directory.
ENTRY_MEANINGS = {
    "format": "version of the format, and of its dibs",
    "lock": "locked by the writer during a commit",
    "commits": "a file for each commit since the checkpoint",
    "checkpoint": "all jobs up to a commit; older ones are gone",
    "reserve": "space that is kept for a full disk",
    "tmp": "files being written; never committed if left",
}

#: Most files that are listed for one folder.
MAX_LISTED = 6


@frozen
class ListedFile:
    """One file below the directory of a file storage."""

    #: Path relative to that directory, with "/" on every system.
    path: str
    #: Size in bytes.
    size: int


def file_url_directory(url: str) -> Path | None:
    """Return the directory of a file: URL, or None for other URLs. Raises UnknownOption for a wrong path."""
    if not url.startswith("file:"):
        return None
    return Path(parse_file_path(url))


def list_files(directory: Path) -> list[ListedFile]:
    """Return every file below a directory, sorted, except files that a worker removes at the same time."""
    found = []
    for root, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            try:
                found.append(ListedFile(path.relative_to(directory).as_posix(), path.lstat().st_size))
            except FileNotFoundError:
                continue
    return found


def format_files(entries: Iterable[ListedFile]) -> list[str]:
    """Return one line for each entry of the directory, with its size and meaning, and its first files."""
    tops: dict[str, list[ListedFile]] = {}
    for entry in entries:
        tops.setdefault(entry.path.partition("/")[0], []).append(entry)
    return [line for top, inside in sorted(tops.items()) for line in _format_entry(top, inside)]


def _format_entry(top: str, inside: list[ListedFile]) -> Iterator[str]:
    size = sum(entry.size for entry in inside)
    meaning = ENTRY_MEANINGS.get(top, "")
    if inside[0].path == top:
        yield f"  {top:<18} {size:>13,}  {meaning}".rstrip()
        return
    yield f"  {top + '/':<18} {size:>13,}  {meaning}".rstrip()
    yield from (f"    {entry.path.partition('/')[2]:<16} {entry.size:>13,}" for entry in inside[:MAX_LISTED])
    if len(inside) > MAX_LISTED:
        yield f"    ... and {len(inside) - MAX_LISTED:,} more"


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


def import_application(application: str, url: str | None = None) -> Dibs:
    """Import the application, searching the current directory first, with --url as the URL of its storage."""
    from dibs.worker.processes.app_import import import_app  # noqa: PLC0415 - slow: it imports the client

    if url is not None:
        os.environ[URL_VARIABLE] = resolve_url(url)
    sys.path.insert(0, str(Path.cwd()))
    return import_app(application)


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


async def warn_of_similar_queue(storage: Storage, queue: str) -> None:
    """Print a warning if the queue is new and has nearly the name of another one, as a misspelled one has."""
    known = {info.name for info in await storage.queues()}
    if queue not in known and (similar := get_close_matches(queue, known, 1, 0.8)):
        print_warning(f"queue {queue!r} is new in {storage.url}; did you mean {similar[0]!r}?")


def _suggest_name(name: str, known: Sequence[str]) -> str:
    similar = get_close_matches(name, known, 1)
    return f"did you mean {similar[0]!r}?" if similar else "`dibs show` lists the queues"


async def read_page(storage: Storage, queue: str, state: State, *, after: str | None, limit: int) -> ListPage:
    """Return up to `limit` jobs in a state, and the cursor behind them; fewer only if no job is left.

    One call of a storage may return a short or an empty page before the last. A program that stops at it
    would miss the jobs behind it.
    """
    page = await storage.list(queue, state, after=after, limit=limit)
    while page.after is not None and len(page.items) < limit:
        more = await storage.list(queue, state, after=page.after, limit=limit - len(page.items))
        page = ListPage(items=(*page.items, *more.items), after=more.after)
    return page
