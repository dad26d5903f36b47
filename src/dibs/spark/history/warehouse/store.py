"""The place of a warehouse: the interface of a local folder and of an object store.

A store has one atomic operation, `create`: it writes a small file unless a file with this name exists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple


class StoredFile(NamedTuple):
    """A file in a store: its size in bytes, and the time of its last change in seconds since the epoch."""

    size: int
    changed_at: float


class Store(ABC):
    """The files of a warehouse. Paths are relative to the warehouse, with slashes."""

    #: Location of the warehouse, as it is shown in messages.
    location: str

    @abstractmethod
    def list_files(self, folder: str) -> dict[str, StoredFile]:
        """Return all files below a folder, by path."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of a small file. Raise FileNotFoundError."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> None:
        """Write a small file atomically. Raise FileExistsError, and write nothing, if the path has a file."""

    @abstractmethod
    def put(self, local: Path, path: str) -> None:
        """Move a local file to a new path. Readers do not know the path yet, so this need not be atomic."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; a missing file is no error."""

    @abstractmethod
    def local_copy(self, path: str) -> Path:
        """Return a local file with the content of an immutable file."""

    @abstractmethod
    def open_file(self, path: str) -> Path | IO[bytes]:
        """Return an immutable file, for a reader that needs only parts of it."""

    @abstractmethod
    def full_path(self, path: str) -> str:
        """Return the path or URL by which other programs open a file."""

    @abstractmethod
    def dataset_paths(self, paths: Iterable[str]) -> tuple[list[str], Any]:
        """Return paths for pyarrow.dataset, and the filesystem to open them with; None is the local one."""

    @abstractmethod
    def work_folder(self) -> Path:
        """Return a new local folder for the files that an increment writes."""
