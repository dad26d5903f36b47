"""The layout of a file storage's directory, and the errors of dibs for errors of the file system.

    jobs/
      format        one line of JSON: the number of the format, and the identity of the directory
      lock          locked by a process while it writes one commit
      commits/      one file for each commit: 000000000000002a is the 42nd
      checkpoint    the index up to some commit; the commits before that one are removed
      reserve       space that is kept for a full disk
      tmp/          files that are being written, before they are renamed into place

`commits` is never empty: it begins with the commit 0, which has no content, and the commit of a checkpoint
stays. So a directory whose commits were removed differs from a new one.

Paths contain no ids, queue names or payloads, so these cannot lead a write outside the directory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final
from weakref import WeakSet

import msgspec
from filelock import lock_descriptor

from dibs.errors import (
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
)
from dibs.storage.file.folder import TMP, CorruptFile, Folder

#: Version of the format. A version of dibs that knows only lower numbers refuses the directory.
FORMAT: Final = 1
#: Bytes of `format` that are read. dibs writes about 120.
MAX_FORMAT_BYTES: Final = 4096
#: Names in the directory.
FORMAT_FILE: Final = "format"
LOCK: Final = "lock"
COMMITS: Final = "commits"
CHECKPOINT: Final = "checkpoint"
RESERVE: Final = "reserve"

_COMMIT: Final = re.compile("[0-9a-f]{16}")
_READ: Final = os.R_OK | os.X_OK
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY: Final = {errno.EROFS, errno.EACCES, errno.EPERM}


class FormatFile(msgspec.Struct, frozen=True):
    """The content of `format`, without the fields that are only for people."""

    format: int
    #: The identity of the directory: a random text, and the inode of this file.
    id: str = ""
    inode: int = 0


class Directory(Folder):
    """The directory of one file storage: its creation, its identity, and the check of its format."""

    def __init__(self, path: str, *, allow_others: bool = False) -> None:
        super().__init__(path, allow_others=allow_others)
        self.root = Path(path)
        #: The identity of the directory, a random text. A directory that was created again has another one.
        #: So has a copy of a directory, from its first write on.
        self.incarnation = ""
        self._is_copy = False

    def commit_numbers(self) -> list[int]:
        """Return the numbers of the existing commits, in ascending order. Skip files with other names."""
        return sorted(int(name, 16) for name in self.names(COMMITS) if _COMMIT.fullmatch(name))

    def count_commits_after(self, path: str) -> int | None:
        """Return the number of commits after the one at a path; None for a file that is no commit."""
        name = path.removeprefix(self.path_of(f"{COMMITS}/"))
        if not _COMMIT.fullmatch(name):
            return None
        return sum(number > int(name, 16) for number in self.commit_numbers())

    def prepare(self) -> bool:
        """Open the directory, and create what is missing. Return whether this call created the storage.

        Raise StorageUnavailable for a folder that contains other files or that other users control,
        StorageDamaged if `format` or `commits` are missing or damaged, and StorageTooNew for a format that a
        newer dibs wrote.
        """
        try:
            created = self._open_or_create()
            self._read_format()
        except OSError as error:
            self.close()
            raise self._to_open_error(error) from error
        except BaseException:
            self.close()
            raise
        return created

    def is_copy(self) -> bool:
        """Return whether the directory is a copy that has no identity of its own yet.

        The inode in `format` shows a copy. The caller holds the commit lock. Raise StorageError.
        """
        if self._is_copy:
            # Another process may have claimed an identity since this process opened the directory.
            self._read_format()
        return self._is_copy

    def claim_identity(self) -> None:
        """Give a copy of a directory an identity of its own. The caller holds the commit lock.

        Raise StorageError.
        """
        try:
            self._write_format()
        except OSError as error:
            raise to_write_error(error, f"cannot write {self.path_of(FORMAT_FILE)}") from error
        self._read_format()

    def _to_open_error(self, error: OSError) -> StorageError:
        doing = f"cannot open {self.path}"
        if isinstance(error, FileExistsError | NotADirectoryError):
            return StorageUnavailable(f"{doing}: it is not a folder")
        if isinstance(error, PermissionError) and self.root.exists() and not os.access(self.path, _READ):
            return StorageUnavailable(
                f"{doing}: this user may not read it; give the user read access to the folder"
            )
        return to_write_error(error, doing)

    def _open_or_create(self) -> bool:
        self.open()
        is_new = not self.exists(FORMAT_FILE)
        if is_new:
            self._refuse_foreign_files()
            self._refuse_lost_format()
            is_new = self._create_files()
        elif not self.exists(COMMITS):
            raise StorageDamaged(f"{self.path_of(COMMITS)} is missing: restore the folder from a backup")
        for name in (COMMITS, TMP):
            self.check_subfolder(name)
        return is_new

    def _refuse_foreign_files(self) -> None:
        known = {LOCK, COMMITS, TMP, FORMAT_FILE, CHECKPOINT, RESERVE}
        foreign = sorted(name for name in self.names() if name not in known)
        if foreign:
            raise StorageUnavailable(
                f"{self.path} contains other files ({foreign[0]!r}, ...): give dibs a folder of its own"
            )

    def open_lock(self) -> FileIO:
        """Open the lock file, which is created if it is missing."""
        file = FileIO(self.open_or_create(LOCK), "ab")
        _open_locks.add(file)
        return file

    def _create_files(self) -> bool:
        """Create the files of a new directory, unless another process does. Return whether this call did."""
        with self.open_lock() as lock:
            lock_descriptor(lock.fileno(), poll_interval=0.001)
            if self.exists(FORMAT_FILE):
                return False
            for name in (COMMITS, TMP):
                self.check_subfolder(name)
            self.write(commit_name(0), [b""], fsync=True)
            # `format` is written last, after the names of the others are synced: a power loss may not leave
            # `format` without `commits`.
            self.sync(COMMITS)
            self.sync()
            self._write_format()
        return True

    def _refuse_lost_format(self) -> None:
        has_jobs = self.exists(CHECKPOINT) or (self.exists(COMMITS) and any(self.commit_numbers()))
        # Another process may just have created everything.
        if has_jobs and not self.exists(FORMAT_FILE):
            raise StorageDamaged(
                f"{self.path_of(FORMAT_FILE)} is missing, but the folder has jobs: restore it from a backup, "
                f'or write the line {{"format": {FORMAT}}} to it'
            )

    def _write_format(self) -> None:
        from dibs.version import VERSION  # noqa: PLC0415 - needed once, when a directory is created

        def content() -> Iterator[bytes]:
            # `write` has created the file, and its inode stays when it is renamed.
            inode, *_ = self.identity(f"{TMP}/{FORMAT_FILE}") or (0,)
            found = {"format": FORMAT, "id": secrets.token_hex(16), "inode": inode}
            yield f"{json.dumps({**found, 'made_by': f'dibs {VERSION}'})}\n".encode()

        # Sync this file in every case, once in the life of a directory. If a power loss removed it, the
        # commits beside it could not be read.
        self.write(FORMAT_FILE, content(), fsync=True)
        self.sync()

    def _read_format(self) -> None:
        path, inode = self.path_of(FORMAT_FILE), 0
        try:
            with self.read(FORMAT_FILE) as file:
                inode = os.fstat(file.fileno()).st_ino
                found = msgspec.json.decode(file.read(MAX_FORMAT_BYTES), type=FormatFile)
        except OSError as error:
            raise to_read_error(error, f"cannot read {path}") from error
        except CorruptFile as damage:
            raise StorageDamaged(str(damage)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = FormatFile(0)
        if found.format < 1:
            raise StorageDamaged(
                f"{path} is damaged: it must be one line of JSON with the number of the format"
            )
        if found.format > FORMAT:
            raise newer_format_error(self.path, found.format)
        self.incarnation, self._is_copy = found.id, found.inode != inode


def commit_name(number: int) -> str:
    return f"{COMMITS}/{number:016x}"


def newer_format_error(path: str, found: int) -> StorageTooNew:
    """Return the error for a file or directory that a newer version of dibs wrote, with format `found`."""
    return StorageTooNew(
        f"{path} has format {found}, and this version of dibs reads up to {FORMAT}: upgrade dibs"
    )


def to_write_error(error: OSError, doing: str) -> StorageError:
    """Convert the OSError of a failed write to an error of dibs. The write must have had no effect.

    `doing` begins the message, as in "cannot commit to ./jobs".
    """
    reason = f"{doing}: {_describe_os_error(error)}"
    if error.errno in _FULL:
        return StorageFull(f"{reason}. Nothing was written; free some disk space and repeat")
    if error.errno in _READ_ONLY:
        return StorageReadOnly(f"{reason}. Nothing was written; give this user write access")
    return StorageUnavailable(reason)


def to_read_error(error: OSError, doing: str) -> StorageError:
    """Convert the OSError of a failed read to an error of dibs. `doing` begins the message."""
    return StorageUnavailable(f"{doing}: {_describe_os_error(error)}")


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{reason} ({error.filename})" if error.filename else reason


_open_locks: Final[WeakSet[FileIO]] = WeakSet()


def _close_inherited() -> None:
    """Close the lock files that a forked child has inherited.

    While the child had one open, a lock would stay held after its holder has released it by closing the
    file, or has died.
    """
    for file in list(_open_locks):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
