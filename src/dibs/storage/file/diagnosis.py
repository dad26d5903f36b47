"""The examination of the folder of a file storage: file system, free space, locks, fsync and format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from filelock import lock_descriptor

from dibs.model.findings import Finding, Rule
from dibs.storage.diagnosis import layout_findings
from dibs.storage.file.directory import FORMAT, FORMAT_FILE, Directory, FormatFile

#: Free bytes and free inodes below which a file system counts as nearly full. Each commit is a file.
LEAST_BYTES: Final = 256 << 20
LEAST_INODES: Final = 1_000
#: File systems in memory, and file systems of other machines.
IN_MEMORY: Final = ("tmpfs", "ramfs")
REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs")
MOUNTS: Final = Path("/proc/self/mountinfo")

#: Takes the exclusive lock of a file, and returns whether it is free.
Lock = Callable[..., bool]

MEMORY: Final = Rule(
    "file-in-memory",
    "warning",
    "The folder is in memory: all jobs end with the machine, also with ?fsync=1.",
    "Use a folder on a disk.",
)
NETWORK: Final = Rule(
    "file-on-network",
    "warning",
    "Locks and the order of writes depend on another machine. A file storage is for one machine.",
    "Use a folder on a local disk, or Redis or Postgres for several machines.",
)
SPACE: Final = Rule(
    "file-space",
    "warning",
    "Without space each call that adds jobs raises StorageFull. Jobs can still end.",
    "Free space on this file system, or shorten the retention of outcomes.",
)
LOCKS: Final = Rule(
    "file-locks",
    "error",
    "The file system does not keep locks, so two processes may write at once and damage the storage.",
    "Stop the workers, and move the folder to a local file system.",
)
NO_FSYNC: Final = Rule(
    "file-no-fsync",
    "note",
    "Accepted jobs survive killed processes. A loss of power may lose the newest ones.",
    "Add `?fsync=1` to the URL of all programs if jobs must survive a loss of power.",
)
RULES: Final = (MEMORY, NETWORK, SPACE, LOCKS, NO_FSYNC)


def diagnose(directory: Directory, *, fsync: bool, lock: Lock = lock_descriptor) -> list[Finding]:
    """Return the findings about a folder, which exists."""
    return [*_examine_format(directory), *_examine_folder(directory.root, fsync=fsync, lock=lock)]


def _examine_format(directory: Directory) -> list[Finding]:
    """Return a finding for another format; none for an unreadable file, which raises when it is opened."""
    try:
        found = msgspec.json.decode((directory.root / FORMAT_FILE).read_bytes(), type=FormatFile).format
    except (OSError, msgspec.DecodeError):
        return []
    return layout_findings(found, FORMAT)


def _examine_folder(root: Path, *, fsync: bool, lock: Lock) -> Iterator[Finding]:
    kind = file_system_of(root)
    if kind in IN_MEMORY:
        yield MEMORY.finding(f"the file system is {kind}")
    if kind in REMOTE:
        yield NETWORK.finding(f"the file system is {kind}")
    space = os.statvfs(root)
    free = space.f_bavail * space.f_frsize
    if free < LEAST_BYTES or (space.f_files and space.f_favail < LEAST_INODES):
        yield SPACE.finding(f"{free >> 20:,} MiB and {space.f_favail:,} inodes are free")
    if not locks_exclude(root, lock):
        yield LOCKS.finding("two open files had the same exclusive lock")
    if not fsync and kind not in IN_MEMORY:
        yield NO_FSYNC.finding("commits are not fsynced")


def file_system_of(path: Path) -> str:
    """Return the type of the file system of a path, as in "ext4"; empty where the system does not say."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    kinds = {}
    for line in lines:
        mount, _, rest = line.partition(" - ")
        kinds[Path(mount.split()[4].encode().decode("unicode_escape"))] = rest.split()[0]
    real = path.resolve()
    return next((kinds[folder] for folder in (real, *real.parents) if folder in kinds), "")


def locks_exclude(root: Path, lock: Lock) -> bool:
    """Return whether a lock in the folder excludes a second one; True where no file can be created."""
    try:
        with (
            tempfile.NamedTemporaryFile(dir=root / "tmp", prefix="doctor.") as first,
            open(first.name, "r+b") as other,
        ):
            return not (lock(first.fileno(), blocking=False) and lock(other.fileno(), blocking=False))
    except OSError:
        return True
