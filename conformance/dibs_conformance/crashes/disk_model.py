"""A model of a disk, for the power loss tests.

`DiskRecorder` records the file operations of a process. `DiskModel` lists every state of the disk that a
power loss may leave.

The model assumes few guarantees. Data written since the last fsync of a file may survive whole, by half, as
zeros, or not at all. A name created, renamed or removed since the last fsync of its folder may survive or
not, independently of other names. Synced data and names survive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from attrs import define, evolve, field, frozen

Kind = Literal["create", "write", "sync", "rename", "unlink", "mkdir", "mark"]
#: Names of the possible states of unsynced content after a power loss: all of it survives, the first half,
#: zeros in its place, or nothing since the last fsync.
REMNANTS = ("all", "half", "zeros", "nothing")
#: Limit on the disk states tried for one point in time.
MAX_DISKS = 24


@frozen
class DiskOperation:
    """One file operation. Paths are relative to the recorded folder."""

    kind: Kind
    path: str = ""
    to: str = ""
    data: bytes = b""


@frozen
class FileState:
    """The content of a file, and the content at its last fsync."""

    data: bytes = b""
    synced: bytes | None = None

    def content_after_loss(self, remnant: str) -> bytes | None:
        """Return the content after a power loss. `remnant` is one of `REMNANTS`."""
        if remnant == "all" or self.data == self.synced:
            return self.data
        if remnant == "half":
            return self.data[: len(self.data) // 2]
        return bytes(len(self.data)) if remnant == "zeros" else (self.synced or b"")


@define
class DiskModel:
    """The files by inode, the names that were synced, and the operations on names since."""

    files: dict[int, FileState] = field(factory=dict)
    #: Inode of each name, as the process sees it.
    names: dict[str, int] = field(factory=dict)
    folders: set[str] = field(factory=set)
    synced: dict[str, int] = field(factory=dict)
    #: Operations on names that a power loss may undo: the folders to fsync, the operation and the inode.
    unsynced: list[tuple[frozenset[str], DiskOperation, int]] = field(factory=list)

    def apply(self, operation: DiskOperation) -> None:
        """Update the model by one operation of the process."""
        match operation.kind:
            case "create":
                self._create_name(operation, len(self.files))
                self.files[len(self.files)] = FileState()
            case "write":
                inode = self.names[operation.path]
                self.files[inode] = evolve(self.files[inode], data=self.files[inode].data + operation.data)
            case "rename":
                inode = self.names.pop(operation.path)
                self.names[operation.to] = inode
                self.unsynced.append(
                    (frozenset({folder(operation.path), folder(operation.to)}), operation, inode)
                )
            case "unlink":
                inode = self.names.pop(operation.path)
                self.unsynced.append((frozenset({folder(operation.path)}), operation, inode))
            case "mkdir":
                self.folders.add(operation.path)
            case "sync":
                self._sync(operation.path)
            case "mark":
                pass

    def _create_name(self, operation: DiskOperation, inode: int) -> None:
        self.names[operation.path] = inode
        self.unsynced.append((frozenset({folder(operation.path)}), operation, inode))

    def _sync(self, path: str) -> None:
        if path in self.names:
            inode = self.names[path]
            self.files[inode] = evolve(self.files[inode], synced=self.files[inode].data)
            return
        durable = [(operation, inode) for folders, operation, inode in self.unsynced if path in folders]
        for operation, inode in durable:
            change_names(self.synced, operation, inode)
        # A durable rename or unlink implies that the creation of the name was durable, too.
        removed = {(operation.path, inode) for operation, inode in durable if operation.kind != "create"}
        self.unsynced = [
            (folders, operation, inode)
            for folders, operation, inode in self.unsynced
            if path not in folders and (operation.path, inode) not in removed
        ]

    def after_power_loss(self) -> Iterator[dict[str, bytes]]:
        """Yield the disk states that a power loss may leave, each as a dict from file name to content.

        At most `MAX_DISKS` states are yielded. The states in which all unsynced names are lost come first,
        then the states in which all of them survive.
        """
        seen: list[dict[str, bytes]] = []
        for kept in self._surviving_names():
            names = dict(self.synced)
            for (_, operation, inode), survives in zip(self.unsynced, kept, strict=True):
                if survives:
                    change_names(names, operation, inode)
            for remnant in REMNANTS:
                disk = {
                    name: self.files[inode].content_after_loss(remnant) or b""
                    for name, inode in names.items()
                }
                if disk not in seen:
                    seen.append(disk)
                    yield disk
                if len(seen) >= MAX_DISKS:
                    return

    def _surviving_names(self) -> Iterator[Sequence[bool]]:
        size = len(self.unsynced)
        yield [False] * size
        yield [True] * size
        if size > 4:
            for at in range(size):
                yield [index == at for index in range(size)]
                yield [index != at for index in range(size)]
            return
        yield from product((False, True), repeat=size)


def change_names(names: dict[str, int], operation: DiskOperation, inode: int) -> None:
    """Apply an operation to a mapping of names to inodes."""
    if operation.kind == "create":
        names[operation.path] = inode
    else:
        if names.get(operation.path) == inode:
            del names[operation.path]
        if operation.kind == "rename":
            names[operation.to] = inode


def folder(path: str) -> str:
    return os.path.dirname(path)  # noqa: PTH120 - a path as text, not a file


def write_disk(disk: dict[str, bytes], folders: set[str], root: Path) -> None:
    """Create the folders and files of a disk state below `root`."""
    for name in sorted(folders):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, data in disk.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


class DiskRecorder:
    """The recorder of the file operations of this process below a folder.

    `install` patches functions of `os` and cannot be undone, so use it in a process of its own.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve())
        self._open: dict[int, str] = {}
        self.operations: list[DiskOperation] = []

    def mark(self) -> None:
        """Record that a call has returned at this point."""
        self.operations.append(DiskOperation("mark"))

    def _relative_path(self, path: Any, folder: int | None = None) -> str | None:
        """Return a path relative to the root, or None. `folder` is the argument `dir_fd` of the call."""
        if not isinstance(path, str | os.PathLike):
            return None
        if folder is not None:
            path = os.path.join(self._root, self._open.get(folder, ".."), path)  # noqa: PTH118 - text
        full = os.path.abspath(os.fspath(path))  # noqa: PTH100 - abspath does not follow links
        return os.path.relpath(full, self._root) if f"{full}/".startswith(f"{self._root}/") else None

    def install(self) -> None:
        """Replace functions of `os` with recording ones."""
        replacements: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
            "open": self._wrap_open,
            "write": self._wrap_write,
            "close": self._wrap_close,
            "fsync": self._wrap_sync,
            "fdatasync": self._wrap_sync,
            "rename": lambda real: self._wrap_rename("rename", real),
            "replace": lambda real: self._wrap_rename("rename", real),
            "unlink": lambda real: self._wrap_rename("unlink", real),
            "remove": lambda real: self._wrap_rename("unlink", real),
            "mkdir": lambda real: self._wrap_rename("mkdir", real),
        }
        for name, wrap in replacements.items():
            setattr(os, name, wrap(getattr(os, name)))

    def _wrap_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def open_(path: Any, flags: int, *args: Any, **options: Any) -> int:
            name = self._relative_path(path, options.get("dir_fd"))
            existed = name is not None and os.path.exists(f"{self._root}/{name}")  # noqa: PTH110 - text
            descriptor = real(path, flags, *args, **options)
            self._open.pop(descriptor, None)
            if name is not None:
                self._open[descriptor] = name
                if flags & os.O_CREAT and (not existed or flags & os.O_TRUNC):
                    self.operations.append(DiskOperation("create", name))
            return descriptor

        return open_

    def _wrap_write(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, data: Any) -> int:
            size = real(descriptor, data)
            if descriptor in self._open:
                self.operations.append(
                    DiskOperation("write", self._open[descriptor], data=bytes(data)[:size])
                )
            return size

        return write

    def _wrap_close(self, real: Callable[..., None]) -> Callable[..., None]:
        def close(descriptor: int) -> None:
            self._open.pop(descriptor, None)
            real(descriptor)

        return close

    def _wrap_sync(self, real: Callable[..., None]) -> Callable[..., None]:
        def sync(descriptor: Any) -> None:
            real(descriptor)
            if descriptor in self._open:
                name = self._open[descriptor]
                self._record_missed_writes(name)
                self.operations.append(DiskOperation("sync", "" if name == "." else name))

        return sync

    def _wrap_rename(self, kind: Kind, real: Callable[..., None]) -> Callable[..., None]:
        def name(path: Any, *args: Any, **options: Any) -> None:
            to = args[0] if kind == "rename" else None
            real(path, *args, **options)
            folder = options.get("src_dir_fd", options.get("dir_fd"))
            self._record(
                kind, self._relative_path(path, folder), self._relative_path(to, options.get("dst_dir_fd"))
            )

        return name

    def _record_missed_writes(self, name: str) -> None:
        """Record bytes of a file that were not written by `os.write`: Python's file objects write in C."""
        path = Path(self._root, name)
        if not path.is_file():
            return
        disk = DiskModel()
        for operation in self.operations:
            disk.apply(operation)
        rest = path.read_bytes()[len(disk.files[disk.names[name]].data) :]
        if rest:
            self.operations.append(DiskOperation("write", name, data=rest))

    def _record(self, kind: Kind, name: str | None, to: str | None) -> None:
        if name is not None:
            self.operations.append(DiskOperation(kind, name, to or ""))
