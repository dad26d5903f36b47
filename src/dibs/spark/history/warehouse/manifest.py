"""The manifests of a warehouse: which files make a generation, and the names of files.

    warehouse/
      manifests/000000000012.json           one for each generation; the largest number is current
      data/runs/queue=mail/date=2026-11-20/000000000012-0-….parquet
      staging/<attempt>/, lock              of the writer, in a local folder only

Files are never changed: an increment adds files, and its manifest names the files that are valid now. So
a generation is complete or does not exist. docs/reference/warehouse.md explains each field.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from dibs.errors import StorageDamaged, StorageTooNew
from dibs.model.requests import StartRate
from dibs.version import VERSION

#: Format of the warehouse. Increase it with every change that older code would misread.
FORMAT: Final = 1
TABLES: Final = ("events", "runs", "metrics", "ids", "live")
MANIFESTS: Final = "manifests"
DATA: Final = "data"


StateT = TypeVar("StateT", bound="WarehouseState")


class TablePartition(NamedTuple):
    """A partition of a table: the rows of one queue and one day in UTC (YYYY-MM-DD), in one folder."""

    queue: str
    date: str


class DataFile(Struct, frozen=True, kw_only=True):
    """A Parquet file of a table, with its number of rows and its size."""

    #: Path below the warehouse.
    path: str
    queue: str
    #: Day in UTC.
    date: str
    rows: int
    bytes: int
    #: Latest time in the file, ms; 0 if the table is not read by time.
    latest: int = 0

    @property
    def partition(self) -> TablePartition:
        """The partition of the file."""
        return TablePartition(self.queue, self.date)


class LogGap(Struct, frozen=True, kw_only=True):
    """A gap in the history of a queue: events were trimmed before they were read. Found at `at`, ms."""

    queue: str
    at: int


class WarehouseState(Struct, frozen=True, kw_only=True):
    """The state of a generation, in addition to its tables."""

    format: int = FORMAT
    version: str = VERSION
    #: URL of the storage without secrets; empty before the first increment.
    source: str = ""
    #: Queue -> offset at which the next increment starts.
    offsets: dict[str, str] = {}
    #: Newest time in the tables, ms. Gauges are known until then.
    horizon: int = 0
    gaps: tuple[LogGap, ...] = ()
    #: Queue -> its limit on the starts of runs, if it has one. The findings of the report need it.
    rates: dict[str, StartRate] = {}
    #: Name in the tables -> name of the queue, for queues whose names are too long for a folder.
    names: dict[str, str] = {}


class Manifest(WarehouseState, frozen=True, kw_only=True):
    """The content of a manifest."""

    #: Number of the generation; 0 before the first increment.
    generation: int = 0
    #: Name of the attempt that wrote the manifest. After a lost reply, it tells whose manifest is there.
    attempt: str = ""
    #: Time at which the manifest was written, ms.
    written_at: int = 0
    #: Table -> its files.
    tables: dict[str, tuple[DataFile, ...]] = {}

    def paths(self) -> set[str]:
        """Return the paths of all files."""
        return {file.path for files in self.tables.values() for file in files}


def generation_name(number: int) -> str:
    """Return the number of a generation as text that sorts; empty for 0."""
    return f"{number:012d}" if number else ""


def manifest_path(number: int) -> str:
    """Return the path of the manifest of a generation."""
    return f"{MANIFESTS}/{generation_name(number)}.json"


def manifest_number(path: str) -> int | None:
    """Return the generation of a manifest's path, or None for another file."""
    name, dot, suffix = path.rpartition("/")[2].partition(".")
    return int(name) if dot and suffix == "json" and name.isdigit() else None


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_state(raw: bytes, where: str, kind: type[StateT]) -> StateT:
    """Return the state in a file. Raise StorageTooNew for a newer format, StorageDamaged if it is invalid."""
    try:
        found = msgspec.json.decode(raw)["format"]
        if found > FORMAT:
            raise StorageTooNew(
                f"the warehouse has format {found}, but dibs {VERSION} reads formats up to {FORMAT}; "
                "upgrade dibs"
            )
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise StorageDamaged(f"{where} is not a valid state of a warehouse: {error}") from error


#: Maximum bytes of a queue's name in the folder name that Spark makes of it, behind `queue=`.
MAX_NAME_BYTES: Final = 240
#: Characters that are kept of a longer name; 50 characters of four bytes each still make a valid folder
#: name.
NAME_PREFIX_LENGTH: Final = 50
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f")
#: Folder name that stands for null in a Hive partition.
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def folder_name(queue: str) -> str:
    """Return the name of a queue in the tables: its own name, or its beginning and a hash.

    A queue's name may have 500 bytes, and Spark writes some characters as three. File systems allow 255
    bytes.
    """
    size = len(queue.encode()) + 2 * sum(_is_escaped(char) for char in queue)
    if size <= MAX_NAME_BYTES and queue != _HIVE_NULL:
        return queue
    return f"{queue[:NAME_PREFIX_LENGTH]}~{blake2b(queue.encode(), digest_size=8).hexdigest()}"


def partition_folder(partition: TablePartition) -> str:
    """Return the folders of a partition, as Spark names them."""
    escaped = "".join(f"%{ord(char):02X}" if _is_escaped(char) else char for char in partition.queue)
    return f"queue={escaped}/date={partition.date}"


def partition_of(file: Path) -> TablePartition:
    """Return the partition of a file by its folders."""
    queue, date = (unquote(part.partition("=")[2]) for part in file.parts[-3:-1])
    return TablePartition(queue, date)


def _is_escaped(char: str) -> bool:
    return char in _ESCAPED or char < " "
