"""A warehouse in a folder on a local or a mounted file system."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dibs.client.options.arguments import new_id
from dibs.errors import StorageReadOnly
from dibs.spark.history.warehouse.store import Store, StoredFile


class LocalStore(Store):
    """A folder on a local or a mounted file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location: str = str(root)

    def list_files(self, folder: str) -> dict[str, StoredFile]:
        """Return all files below a folder, by path."""
        found = {}
        for path in (self.root / folder).rglob("*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            # A hidden file is the unfinished file of a `create`.
            if path.is_file() and not path.name.startswith("."):
                found[path.relative_to(self.root).as_posix()] = StoredFile(status.st_size, status.st_mtime)
        return found

    def read(self, path: str) -> bytes:
        """Return the content of a small file. Raise FileNotFoundError."""
        return (self.root / path).read_bytes()

    def create(self, path: str, content: bytes) -> None:
        """Write a small file atomically. Raise FileExistsError, and write nothing, if the path has a file.

        A hard link is the one operation of POSIX that gives a complete file its name only if the name is
        free, also on NFS. On a file system without hard links the file is renamed instead; there only the
        lock of the warehouse keeps a second writer out.
        """
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{new_id()}")
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _link_or_rename(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)

    def put(self, local: Path, path: str) -> None:
        """Move a local file to a new path."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        local.replace(target)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, and the folders that become empty."""
        for path in paths:
            target = self.root / path
            target.unlink(missing_ok=True)
            for folder in target.parents:
                if folder == self.root or not folder.is_dir() or any(folder.iterdir()):
                    break
                folder.rmdir()

    def local_copy(self, path: str) -> Path:
        """Return the file itself."""
        return self.root / path

    def open_file(self, path: str) -> Path:
        """Return the file itself."""
        return self.root / path

    def full_path(self, path: str) -> str:
        """Return the path by which other programs open a file."""
        return str(self.root / path)

    def dataset_paths(self, paths: Iterable[str]) -> tuple[list[str], Any]:
        """Return local paths."""
        return [self.full_path(path) for path in paths], None

    def work_folder(self) -> Path:
        """Return a new folder for the files that an increment writes, in the same file system.

        Its name is new for each attempt, because Java may still write into the folder of an attempt whose
        Python process was killed.
        """
        folder = self.root / "staging" / new_id()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise StorageReadOnly(f"cannot write to {self.root}: {error.strerror}") from error
        return folder


def _link_or_rename(unfinished: Path, target: Path) -> None:
    try:
        os.link(unfinished, target)
    except FileExistsError:
        raise
    except OSError:
        if target.exists():
            raise FileExistsError(target) from None
        unfinished.rename(target)
