"""A folder of Parquet tables that changes all at once: generations, and one link that says which counts.

    warehouse/
      events  runs  metrics  ids  live      links into current/: what people read
      current -> generations/000000000012   moved by one rename: the whole warehouse is old or new
      generations/000000000012/
        state.json                          format, source, offsets: of exactly these tables
        runs/queue=mail/date=2026-11-20/part-….parquet
      staging/                              what is being written; nobody reads it
      lock                                  held by the one process that writes

A generation holds hard links to the files it shares with the one before, so a small change is small.
A process that is killed leaves `current` where it was; what it half wrote is removed by the next writer.
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

from dibs.errors import Refused, StorageDamaged, StorageReadOnly, StorageTooNew
from dibs.version import VERSION

#: Raised with every change that older code would misread.
FORMAT: Final = 1
TABLES: Final = ("events", "runs", "metrics", "ids", "live")
#: The current generation and the one before it: who began to read that one can go on.
KEPT_GENERATIONS: Final = 2
#: Files below this size are merged once a partition has more than MOST_SMALL of them.
SMALL_FILE_BYTES: Final = 32 * 1024 * 1024
MAX_SMALL_FILES: Final = 8
#: Bytes of a queue's name as Spark writes it into the name of a folder, behind `queue=`.
MAX_NAME_BYTES: Final = 240
#: Signs that are kept of a longer one: of the largest, four bytes each, it still makes a folder.
NAME_PREFIX_LENGTH: Final = 50
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f")
#: How a folder says that there is no name.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class TablePartition(NamedTuple):
    """A folder of a table: the rows of one queue and one day in UTC (YYYY-MM-DD)."""

    queue: str
    date: str


class LogGap(Struct, frozen=True, kw_only=True):
    """Events of a queue that were trimmed from its log before they were read; found at `at`, ms."""

    queue: str
    at: int


class WarehouseState(Struct, frozen=True, kw_only=True):
    """What a generation knows beyond its tables."""

    format: int = FORMAT
    version: str = VERSION
    #: The place the events come from, without secrets; empty before the first increment.
    source: str = ""
    #: Queue -> where to go on in its log.
    offsets: dict[str, str] = {}
    #: The newest time in the tables, ms: levels are known until then.
    horizon: int = 0
    gaps: tuple[LogGap, ...] = ()
    #: What a table calls the queues whose names are too long for a folder -> their names.
    names: dict[str, str] = {}


def folder_name(queue: str) -> str:
    """Return what the tables call a queue: its name, or where that makes no folder, its beginning and a hash.

    A name may have 500 bytes, and Spark writes some signs as three; file systems end at 255.
    """
    size = len(queue.encode()) + 2 * sum(char in _ESCAPED or char < " " for char in queue)
    if size <= MAX_NAME_BYTES and queue != _NULL:
        return queue
    return f"{queue[:NAME_PREFIX_LENGTH]}~{blake2b(queue.encode(), digest_size=8).hexdigest()}"


class Warehouse:
    """The tables as they are now. Everything that is read goes through `folder`, fixed when it was opened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        link = root / "current"
        self.folder: Path = link.resolve()
        self.state: WarehouseState = (
            _read_state(self.folder / "state.json") if link.is_symlink() else WarehouseState()
        )

    @classmethod
    def existing(cls, root: Path) -> Warehouse:
        """Open a warehouse to read it. Raises Refused where there is none."""
        if not (root / "current").is_symlink():
            raise Refused(
                f"there is no warehouse in {root}; dibs spark history --warehouse {root} makes one",
                field="warehouse",
            )
        return cls(root)

    @property
    def generation(self) -> str:
        """Its number as text that sorts; empty before the first."""
        return self.folder.name if self.folder.name.isdigit() else ""

    def table(self, name: str) -> Path:
        """Return the folder of a table, with its partitions below."""
        return self.folder / name

    def files(self, name: str) -> dict[TablePartition, list[Path]]:
        """Return the files of a table by partition."""
        return _files_below(self.table(name))

    @contextmanager
    def open_draft(self) -> Iterator[Draft]:
        """Hold the lock and give a draft of the next generation, on top of what is current by then.

        Raises Refused while another process writes, StorageReadOnly where nothing can be written.
        """
        _prepare(self.root)
        lock = FileLock(self.root / "lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise Refused(
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
    """The next generation while it is put together: which files it will hold. Nothing shows before commit."""

    def __init__(self, before: Warehouse) -> None:
        self.before = before
        self._files = {name: before.files(name) for name in TABLES}

    def staging(self, name: str) -> Path:
        """Return a folder that is not there yet, to write a table or a part of one into."""
        folder = self.before.root / "staging" / name
        folder.parent.mkdir(exist_ok=True)
        return folder

    def add(self, table: str, staged: Path) -> None:
        """Let the next generation also hold what was written to `staged`."""
        for partition, files in _files_below(staged).items():
            self._files[table].setdefault(partition, []).extend(files)

    def replace(self, table: str, touched: Iterable[TablePartition], staged: Path) -> None:
        """Let what was written to `staged` take the place of all files in the partitions touched."""
        for partition in touched:
            self._files[table].pop(partition, None)
        self.add(table, staged)

    def files_to_compact(self, table: str) -> list[Path]:
        """Return the small files of every partition that has too many of them."""
        small = (_small_files(files) for files in self._files[table].values())
        return [file for files in small if len(files) > MAX_SMALL_FILES for file in files]

    def compact(self, table: str, files: Iterable[Path], staged: Path) -> None:
        """Let what was written to `staged` take the place of these files."""
        replaced = set(files)
        for partition, current in self._files[table].items():
            self._files[table][partition] = [file for file in current if file not in replaced]
        self.add(table, staged)

    def commit(self, state: WarehouseState) -> Warehouse:
        """Make it the current generation: until the last rename the old one is, and after it the new."""
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
                f"the warehouse has format {found}, this dibs ({VERSION}) knows up to {FORMAT}: upgrade it"
            )
        return msgspec.json.decode(raw, type=WarehouseState)
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise StorageDamaged(f"{path} is no state of a warehouse: {error}") from error


def _prepare(root: Path) -> None:
    """Make the folder, and the links people read through."""
    if root.is_dir() and any(root.iterdir()) and not (root / "generations").is_dir():
        raise Refused(f"{root} holds other things; give the warehouse a folder of its own", field="warehouse")
    try:
        (root / "generations").mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            if not (root / table).is_symlink():
                _move_link(root / table, Path("current", table))
    except OSError as error:
        raise StorageReadOnly(f"cannot write to {root}: {error.strerror}") from error


def _remove_leftovers(warehouse: Warehouse) -> None:
    """Remove what a killed writer left: its staging, and a generation that never became current."""
    shutil.rmtree(warehouse.root / "staging", ignore_errors=True)
    for folder in (warehouse.root / "generations").iterdir():
        if folder.name > warehouse.generation:
            shutil.rmtree(folder)


def _move_link(link: Path, target: Path) -> None:
    """Let a link point elsewhere, in one step."""
    new = link.with_name(f".{link.name}")
    new.unlink(missing_ok=True)
    new.symlink_to(target, target_is_directory=True)
    new.replace(link)


def _link_files(files: list[Path], table: Path) -> None:
    """Put files into a table under the folders they are in."""
    for file in files:
        folder = table.joinpath(*file.parts[-3:-1])
        folder.mkdir(parents=True, exist_ok=True)
        os.link(file, folder / file.name)


def _files_below(table: Path) -> dict[TablePartition, list[Path]]:
    """Return the data files below a table's folder; Spark's own notes beside them do not count."""
    found: dict[TablePartition, list[Path]] = {}
    for path in sorted(table.glob("queue=*/date=*/*.parquet")):
        queue, date = (unquote(part.partition("=")[2]) for part in path.parts[-3:-1])
        found.setdefault(TablePartition(queue, date), []).append(path)
    return found


def _small_files(files: list[Path]) -> list[Path]:
    return [file for file in files if file.stat().st_size < SMALL_FILE_BYTES]
