"""The warehouse: a folder of Parquet tables that changes atomically, as generations and a symbolic link.

    warehouse/
      events  runs  metrics  ids  live      links into current/, for readers
      current -> generations/000000000012   changed by one rename
      generations/000000000012/
        state.json                          format, source, offsets: of exactly these tables
        runs/queue=mail/date=2026-11-20/part-….parquet
      staging/<attempt>/                    files of the increment that runs now
      lock                                  held by the one process that writes

A generation has hard links to the files that it shares with the generation before, so a small change is
cheap. If a writer is killed, `current` still has the old target, and the next writer deletes the
unfinished files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct

from dibs.client.options.ids import new_id
from dibs.errors import Refused, StorageDamaged, StorageReadOnly, StorageTooNew
from dibs.version import VERSION

#: Format of the warehouse. Increase it with every change that older code would misread.
FORMAT: Final = 1
TABLES: Final = ("events", "runs", "metrics", "ids", "live")
#: Generations that are kept: the current one and its predecessor, whose readers can finish.
KEPT_GENERATIONS: Final = 2
#: A partition with more than MAX_SMALL_FILES files below this size is compacted.
SMALL_FILE_BYTES: Final = 32 * 1024 * 1024
MAX_SMALL_FILES: Final = 8
#: Maximum bytes of a queue's name in the folder name that Spark makes of it, behind `queue=`.
MAX_NAME_BYTES: Final = 240
#: Characters that are kept of a longer name; 50 characters of four bytes each still make a valid folder
#: name.
NAME_PREFIX_LENGTH: Final = 50
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f")
#: Folder name that stands for null in a Hive partition.
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class WarehouseBusy(Refused):
    """Another process writes to the warehouse. Nothing was changed; a later increment may succeed."""


class TablePartition(NamedTuple):
    """A partition of a table: the rows of one queue and one day in UTC (YYYY-MM-DD), in one folder."""

    queue: str
    date: str


class LogGap(Struct, frozen=True, kw_only=True):
    """A gap in the history of a queue: events were trimmed before they were read. Found at `at`, ms."""

    queue: str
    at: int


class WarehouseState(Struct, frozen=True, kw_only=True):
    """The content of state.json: the state of a generation, in addition to its tables."""

    format: int = FORMAT
    version: str = VERSION
    #: URL of the storage without secrets; empty before the first increment.
    source: str = ""
    #: Queue -> offset at which the next increment starts.
    offsets: dict[str, str] = {}
    #: Newest time in the tables, ms. Gauges are known until then.
    horizon: int = 0
    gaps: tuple[LogGap, ...] = ()
    #: Name in the tables -> name of the queue, for queues whose names are too long for a folder.
    names: dict[str, str] = {}


def folder_name(queue: str) -> str:
    """Return the name of a queue in the tables: its own name, or its beginning and a hash.

    A queue's name may have 500 bytes, and Spark writes some characters as three. File systems allow 255
    bytes.
    """
    size = len(queue.encode()) + 2 * sum(char in _ESCAPED or char < " " for char in queue)
    if size <= MAX_NAME_BYTES and queue != _HIVE_NULL:
        return queue
    return f"{queue[:NAME_PREFIX_LENGTH]}~{blake2b(queue.encode(), digest_size=8).hexdigest()}"


class Warehouse:
    """The tables of the generation that was current when the warehouse was opened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        link = root / "current"
        _check_links(root)
        self.folder: Path = link.resolve()
        self.state: WarehouseState = (
            _read_state(self.folder / "state.json") if link.is_symlink() else WarehouseState()
        )

    @classmethod
    def existing(cls, root: Path) -> Warehouse:
        """Open a warehouse to read it. Raise Refused if the folder has none."""
        _check_links(root)
        if not (root / "current").is_symlink():
            raise Refused(
                f"no warehouse in {root}; create one with dibs spark history --warehouse {root}",
                field="warehouse",
            )
        return cls(root)

    @property
    def generation(self) -> str:
        """The number of the generation as text that sorts; empty before the first increment."""
        return self.folder.name if self.folder.name.isdigit() else ""

    def table(self, name: str) -> Path:
        """Return the folder of a table."""
        return self.folder / name

    def files(self, name: str) -> dict[TablePartition, list[Path]]:
        """Return the files of a table by partition."""
        return _files_below(self.table(name))

    @contextmanager
    def open_draft(self) -> Iterator[Draft]:
        """Lock the warehouse and yield a draft of the next generation, based on the current one.

        Raise Refused while another process writes, and StorageReadOnly if the folder cannot be written.
        """
        _create_layout(self.root)
        lock = FileLock(self.root / "lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise WarehouseBusy(
                f"another process is writing to the warehouse {self.root}; wait for it or stop it",
                field="warehouse",
            ) from None
        with lock:
            now = Warehouse(self.root)
            _remove_leftovers(now)
            try:
                yield Draft(now)
            finally:
                shutil.rmtree(self.root / "staging", ignore_errors=True)


class Draft:
    """The next generation while it is built: the files that it will hold. Readers see it after `commit`."""

    def __init__(self, before: Warehouse) -> None:
        self.before = before
        #: Folder of the staged files. Its name is new for each attempt, because Java may still write into the
        #: folder of an attempt whose Python process was killed.
        self.folder: Path = before.root / "staging" / new_id()
        self._files = {name: before.files(name) for name in TABLES}

    def staging(self, name: str) -> Path:
        """Return the path of a new folder to write a table, or a part of one, to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def add(self, table: str, staged: Path) -> None:
        """Add the files in `staged` to a table."""
        for partition, files in _files_below(staged).items():
            self._files[table].setdefault(partition, []).extend(files)

    def replace(self, table: str, touched: Iterable[TablePartition], staged: Path) -> None:
        """Replace all files of the partitions `touched` with the files in `staged`."""
        for partition in touched:
            self._files[table].pop(partition, None)
        self.add(table, staged)

    def files_to_compact(self, table: str) -> list[Path]:
        """Return the small files of every partition that has too many of them."""
        small = (_small_files(files) for files in self._files[table].values())
        return [file for files in small if len(files) > MAX_SMALL_FILES for file in files]

    def compact(self, table: str, files: Iterable[Path], staged: Path) -> None:
        """Replace these files with the files in `staged`."""
        replaced = set(files)
        for partition, current in self._files[table].items():
            self._files[table][partition] = [file for file in current if file not in replaced]
        self.add(table, staged)

    def commit(self, state: WarehouseState) -> Warehouse:
        """Make the draft the current generation. The rename of the link `current` is the atomic step."""
        root = self.before.root
        number = int(self.before.generation or 0) + 1
        folder = root / "generations" / f"{number:012d}"
        for table, partitions in self._files.items():
            (folder / table).mkdir(parents=True)
            for files in partitions.values():
                _link_files(files, folder / table)
        (folder / "state.json").write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        _move_link(root / "current", Path("generations", folder.name))
        for old in sorted((root / "generations").iterdir())[:-KEPT_GENERATIONS]:
            shutil.rmtree(old, ignore_errors=True)
        return Warehouse(root)


def _read_state(path: Path) -> WarehouseState:
    try:
        raw = path.read_bytes()
        found = msgspec.json.decode(raw)["format"]
        if found > FORMAT:
            raise StorageTooNew(
                f"the warehouse has format {found}, but dibs {VERSION} reads formats up to {FORMAT}; "
                "upgrade dibs"
            )
        return msgspec.json.decode(raw, type=WarehouseState)
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise StorageDamaged(f"{path} is not a valid state of a warehouse: {error}") from error


def _check_links(root: Path) -> None:
    """Raise StorageDamaged for a copy of a warehouse that was made without its symbolic links."""
    generations = root / "generations"
    if (root / "current").is_symlink() or not generations.is_dir() or not any(generations.iterdir()):
        return
    raise StorageDamaged(
        f"the warehouse {root} has generations but no symbolic link `current`: it was copied without its "
        "links. Copy it again with its links, for example by cp -a or rsync -a"
    )


def _create_layout(root: Path) -> None:
    """Create the folder and its links."""
    if root.is_dir() and any(root.iterdir()) and not (root / "generations").is_dir():
        raise Refused(f"{root} holds other files; choose an empty folder", field="warehouse")
    try:
        (root / "generations").mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            if not (root / table).is_symlink():
                _move_link(root / table, Path("current", table))
    except OSError as error:
        raise StorageReadOnly(f"cannot write to {root}: {error.strerror}") from error


def _remove_leftovers(warehouse: Warehouse) -> None:
    """Delete the staging folder of a killed writer, and a generation that never became current."""
    shutil.rmtree(warehouse.root / "staging", ignore_errors=True)
    for folder in (warehouse.root / "generations").iterdir():
        if folder.name > warehouse.generation:
            shutil.rmtree(folder)


def _move_link(link: Path, target: Path) -> None:
    """Change the target of a link atomically."""
    new = link.with_name(f".{link.name}")
    new.unlink(missing_ok=True)
    new.symlink_to(target, target_is_directory=True)
    new.replace(link)


def _link_files(files: list[Path], table: Path) -> None:
    """Add hard links to files in a table, below the same partition folders."""
    for file in files:
        folder = table.joinpath(*file.parts[-3:-1])
        folder.mkdir(parents=True, exist_ok=True)
        os.link(file, folder / file.name)


def _files_below(table: Path) -> dict[TablePartition, list[Path]]:
    """Return the data files of a table by partition, without the marker files that Spark writes."""
    found: dict[TablePartition, list[Path]] = {}
    for path in sorted(table.glob("queue=*/date=*/*.parquet")):
        queue, date = (unquote(part.partition("=")[2]) for part in path.parts[-3:-1])
        found.setdefault(TablePartition(queue, date), []).append(path)
    return found


def _small_files(files: list[Path]) -> list[Path]:
    return [file for file in files if file.stat().st_size < SMALL_FILE_BYTES]
