"""What a process does to the files below a folder, in order, and every disk a power loss may leave of it.

The rules of a disk that promises little: what was written since the last fsync of a file may be there,
half there, zeros or missing; a name made, moved or removed since the last fsync of its folder may or may not
be there, each for itself. What was synced is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

Kind = Literal["create", "write", "sync", "rename", "unlink", "mkdir", "mark"]
#: What may be left of a file that was not synced.
LEFT = ("all", "half", "zeros", "nothing")
#: More disks than this of one moment are not tried.
MOST = 24


@dataclass(frozen=True)
class Deed:
    """One thing done to the disk; paths are below the folder."""

    kind: Kind
    path: str = ""
    to: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class File:
    """A file, and how much of it is synced."""

    data: bytes = b""
    synced: bytes | None = None

    def left(self, how: str) -> bytes | None:
        """What a power loss leaves of it, one way or another; None for no more than what was synced."""
        if how == "all" or self.data == self.synced:
            return self.data
        if how == "half":
            return self.data[: len(self.data) // 2]
        return bytes(len(self.data)) if how == "zeros" else (self.synced or b"")


@dataclass
class Disk:
    """The files by inode, the names that are synced, and what was done to names since."""

    files: dict[int, File] = field(default_factory=dict)
    #: What the process sees.
    names: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    synced: dict[str, int] = field(default_factory=dict)
    #: Deeds to names that may be lost: the folders they wait for, and what they change.
    open: list[tuple[frozenset[str], Deed, int]] = field(default_factory=list)

    def do(self, deed: Deed) -> None:
        """Let it be done, as the process sees it."""
        match deed.kind:
            case "create":
                self._name(deed, len(self.files))
                self.files[len(self.files)] = File()
            case "write":
                inode = self.names[deed.path]
                self.files[inode] = replace(self.files[inode], data=self.files[inode].data + deed.data)
            case "rename":
                inode = self.names.pop(deed.path)
                self.names[deed.to] = inode
                self.open.append((frozenset({folder(deed.path), folder(deed.to)}), deed, inode))
            case "unlink":
                inode = self.names.pop(deed.path)
                self.open.append((frozenset({folder(deed.path)}), deed, inode))
            case "mkdir":
                self.folders.add(deed.path)
            case "sync":
                self._sync(deed.path)
            case "mark":
                pass

    def _name(self, deed: Deed, inode: int) -> None:
        self.names[deed.path] = inode
        self.open.append((frozenset({folder(deed.path)}), deed, inode))

    def _sync(self, path: str) -> None:
        if path in self.names:
            inode = self.names[path]
            self.files[inode] = replace(self.files[inode], synced=self.files[inode].data)
            return
        settled = [(deed, inode) for folders, deed, inode in self.open if path in folders]
        for deed, inode in settled:
            renamed(self.synced, deed, inode)
        # A name that went elsewhere for good was made for good before.
        gone = {(deed.path, inode) for deed, inode in settled if deed.kind != "create"}
        self.open = [
            (folders, deed, inode)
            for folders, deed, inode in self.open
            if path not in folders and (deed.path, inode) not in gone
        ]

    def after_power_loss(self) -> Iterator[dict[str, bytes]]:
        """Every disk that may be left, by name, up to a bound; the emptiest and the fullest first."""
        seen: list[dict[str, bytes]] = []
        for kept in self._kept():
            names = dict(self.synced)
            for (_, deed, inode), there in zip(self.open, kept, strict=True):
                if there:
                    renamed(names, deed, inode)
            for how in LEFT:
                disk = {name: self.files[inode].left(how) or b"" for name, inode in names.items()}
                if disk not in seen:
                    seen.append(disk)
                    yield disk
                if len(seen) >= MOST:
                    return

    def _kept(self) -> Iterator[Sequence[bool]]:
        size = len(self.open)
        yield [False] * size
        yield [True] * size
        if size > 4:
            for at in range(size):
                yield [here == at for here in range(size)]
                yield [here != at for here in range(size)]
            return
        yield from product((False, True), repeat=size)


def renamed(names: dict[str, int], deed: Deed, inode: int) -> None:
    """Do to names what a deed did."""
    if deed.kind == "create":
        names[deed.path] = inode
    else:
        if names.get(deed.path) == inode:
            del names[deed.path]
        if deed.kind == "rename":
            names[deed.to] = inode


def folder(path: str) -> str:
    return os.path.dirname(path)  # noqa: PTH120 - text, not a place


def lay_out(disk: dict[str, bytes], folders: set[str], root: Path) -> None:
    """Make such a disk below a folder."""
    for name in sorted(folders):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, data in disk.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


class Recorder:
    """Writes down what this process does below a folder; put there once, for good."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve())
        self._open: dict[int, str] = {}
        self.deeds: list[Deed] = []

    def mark(self) -> None:
        """A call returned here."""
        self.deeds.append(Deed("mark"))

    def _below(self, path: Any) -> str | None:
        if not isinstance(path, str | os.PathLike):
            return None
        full = os.path.abspath(os.fspath(path))  # noqa: PTH100 - links are not followed here
        return os.path.relpath(full, self._root) if f"{full}/".startswith(f"{self._root}/") else None

    def stand_between(self) -> None:
        """From now on write down what is done."""
        stand_ins: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
            "open": self._opening,
            "write": self._writing,
            "close": self._closing,
            "fsync": self._syncing,
            "fdatasync": self._syncing,
            "rename": lambda real: self._naming("rename", real),
            "replace": lambda real: self._naming("rename", real),
            "unlink": lambda real: self._naming("unlink", real),
            "remove": lambda real: self._naming("unlink", real),
            "mkdir": lambda real: self._naming("mkdir", real),
        }
        for name, around in stand_ins.items():
            setattr(os, name, around(getattr(os, name)))

    def _opening(self, real: Callable[..., int]) -> Callable[..., int]:
        def open_(path: Any, flags: int, *args: Any, **words: Any) -> int:
            name = self._below(path)
            there = name is not None and os.path.exists(path)  # noqa: PTH110 - may be text or bytes
            descriptor = real(path, flags, *args, **words)
            self._open.pop(descriptor, None)
            if name is not None:
                self._open[descriptor] = name
                if flags & os.O_CREAT and (not there or flags & os.O_TRUNC):
                    self.deeds.append(Deed("create", name))
            return descriptor

        return open_

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, data: Any) -> int:
            size = real(descriptor, data)
            if descriptor in self._open:
                self.deeds.append(Deed("write", self._open[descriptor], data=bytes(data)[:size]))
            return size

        return write

    def _closing(self, real: Callable[..., None]) -> Callable[..., None]:
        def close(descriptor: int) -> None:
            self._open.pop(descriptor, None)
            real(descriptor)

        return close

    def _syncing(self, real: Callable[..., None]) -> Callable[..., None]:
        def sync(descriptor: Any) -> None:
            real(descriptor)
            if descriptor in self._open:
                name = self._open[descriptor]
                self._catch_up(name)
                self.deeds.append(Deed("sync", "" if name == "." else name))

        return sync

    def _naming(self, kind: Kind, real: Callable[..., None]) -> Callable[..., None]:
        def name(path: Any, *args: Any, **words: Any) -> None:
            real(path, *args, **words)
            self._told(kind, path, args[0] if kind == "rename" else None)

        return name

    def _catch_up(self, name: str) -> None:
        """Write down what was written past us: Python's own files do not use os.write."""
        path = Path(self._root, name)
        if not path.is_file():
            return
        told = b""
        for deed in self.deeds:
            if deed.path == name and deed.kind in ("create", "write"):
                told = b"" if deed.kind == "create" else told + deed.data
        rest = path.read_bytes()[len(told) :]
        if rest:
            self.deeds.append(Deed("write", name, data=rest))

    def _told(self, kind: Kind, path: Any, to: Any = None) -> None:
        name, other = self._below(path), self._below(to)
        if name is not None:
            self.deeds.append(Deed(kind, name, other or ""))
