"""Names of queues in the tables and in the folders of a warehouse."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from dibs.spark.history.warehouse.manifest import TablePartition

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
