"""The place of a warehouse: a local folder or an object store.

A store has one atomic operation, `create`: it writes a small file unless a file with this name exists.

On S3, `create` is a request with `If-None-Match: *`. fsspec offers it for the object stores of several
vendors. The filesystems of pyarrow do not: their `open_output_stream` truncates an existing file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from dibs.client.options.arguments import new_id
from dibs.errors import ConfigurationError, Refused, StorageReadOnly, StorageUnavailable
from dibs.model.error_text import summarize_exception


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


#: Scheme of a URL -> the package that fsspec needs for it. `create` of these stores is one atomic request.
OBJECT_STORES: Final = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
#: Filesystems that rename a file only if no file has the new name.
RENAMING_STORES: Final = {"hdfs": "pyarrow"}

_PRECONDITION_FAILED: Final = 412


class RemoteStore(Store):
    """A folder in an object store or in HDFS, opened by fsspec."""

    def __init__(self, location: str) -> None:
        scheme = location.partition("://")[0]
        self.location: str = location.rstrip("/")
        self._scheme = scheme
        self._root = self._strip(self.location)
        self._copies: dict[str, Path] = {}

    @cached_property
    def _fs(self) -> Any:
        return _filesystem(self._scheme)

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="dibs-history-")

    @staticmethod
    def _strip(location: str) -> str:
        return location.partition("://")[2].strip("/")

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def list_files(self, folder: str) -> dict[str, StoredFile]:
        """Return all files below a folder, by path."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:
            # A listing is the first request. Each package has errors of its own for missing credentials and
            # for servers that cannot be reached.
            raise StorageUnavailable(f"cannot read {self.location}: {summarize_exception(error)}") from error
        begin = len(self._root) + 1
        return {
            name.strip("/")[begin:]: StoredFile(info["size"], _changed_at(info))
            for name, info in found.items()
        }

    def read(self, path: str) -> bytes:
        """Return the content of a small file. Raise FileNotFoundError."""
        content: bytes = self._fs.cat_file(self._path(path))
        return content

    def create(self, path: str, content: bytes) -> None:
        """Write a small file atomically. Raise FileExistsError, and write nothing, if the path has a file."""
        target = self._path(path)
        if self._scheme in OBJECT_STORES:
            try:
                self._fs.pipe_file(target, content, mode="create")
            except OSError as error:
                # gcsfs raises its own error with the status "Precondition Failed".
                if getattr(error, "code", None) == _PRECONDITION_FAILED:
                    raise FileExistsError(target) from error
                raise
            return
        unfinished = f"{target}.{new_id()}.unfinished"
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(unfinished, content)
        try:
            self._fs.mv(unfinished, target)
        except OSError:
            if not self._fs.exists(target):
                raise
            raise FileExistsError(target) from None
        finally:
            if self._fs.exists(unfinished):
                self._fs.rm_file(unfinished)

    def put(self, local: Path, path: str) -> None:
        """Upload a local file, and keep it as the local copy."""
        target = self._path(path)
        if self._scheme not in OBJECT_STORES:
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._fs.put_file(str(local), target)
        copy = self._copy_path(path)
        shutil.move(local, copy)
        self._copies[path] = copy

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; a missing file is no error."""
        for path in paths:
            if copy := self._copies.pop(path, None):
                copy.unlink(missing_ok=True)
            try:
                self._fs.rm_file(self._path(path))
            except FileNotFoundError:
                continue

    def local_copy(self, path: str) -> Path:
        """Download a file, or return its earlier download: files never change."""
        if path not in self._copies:
            copy = self._copy_path(path)
            part = copy.with_name(f"{copy.name}.part")
            self._fs.get_file(self._path(path), str(part))
            part.rename(copy)
            self._copies[path] = copy
        return self._copies[path]

    def _copy_path(self, path: str) -> Path:
        copy = Path(self._folder.name, "copies", path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        return copy

    def open_file(self, path: str) -> Path | IO[bytes]:
        """Return the local copy, if there is one, or a file that reads the requested parts."""
        if path in self._copies:
            return self._copies[path]
        file: IO[bytes] = self._fs.open(self._path(path), "rb")
        return file

    def full_path(self, path: str) -> str:
        """Return the URL by which other programs open a file."""
        return f"{self.location}/{path}"

    def dataset_paths(self, paths: Iterable[str]) -> tuple[list[str], Any]:
        """Return paths in the filesystem of fsspec, and this filesystem."""
        return [self._path(path) for path in paths], self._fs

    def work_folder(self) -> Path:
        """Return a new local folder for the files that an increment writes."""
        return Path(tempfile.mkdtemp(prefix="attempt-", dir=self._folder.name))


def _changed_at(info: Mapping[str, Any]) -> float:
    moment = info.get("LastModified") or info.get("mtime") or info.get("updated") or info.get("created")
    return float(moment.timestamp()) if isinstance(moment, datetime) else float(moment or 0)


def _filesystem(scheme: str) -> Any:
    package = {**OBJECT_STORES, **RENAMING_STORES}[scheme]
    try:
        import fsspec  # noqa: PLC0415 - local warehouses do not need it

        options = {"use_listings_cache": False} if scheme in OBJECT_STORES else {}
        return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise ConfigurationError(
            f"a warehouse at {scheme}:// needs {package}: pip install {package}"
        ) from error
    except OSError as error:
        raise StorageUnavailable(f"cannot open {scheme}://: {summarize_exception(error)}") from error


_opened: dict[str, Store] = {}


def open_store(location: str | Path) -> Store:
    """Return the store of a warehouse: a path, or a URL such as `s3://bucket/history`.

    A process has one store per URL, so that increments use the downloads of earlier ones. Raise Refused
    for a URL of another scheme.
    """
    scheme, separator, rest = str(location).partition("://")
    if not separator:
        return LocalStore(Path(location))
    if scheme == "file":
        return LocalStore(Path("/" + rest.lstrip("/")))
    if scheme not in {*OBJECT_STORES, *RENAMING_STORES}:
        known = ", ".join(sorted({*OBJECT_STORES, *RENAMING_STORES}))
        raise Refused(
            f"no warehouse can be at {scheme}://; use a path, or a URL with one of these schemes: {known}",
            field="warehouse",
        )
    if not rest.strip("/"):
        raise Refused(f"{location} names no bucket; write {scheme}://BUCKET/FOLDER", field="warehouse")
    return _opened.setdefault(str(location).rstrip("/"), RemoteStore(str(location)))
