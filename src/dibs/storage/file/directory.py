"""The layout of a file storage's directory, and the errors of dibs for errors of the file system.

    jobs/
      format        one line of JSON: the format's number, and the version of dibs that created the directory
      lock          locked by a process while it writes one commit
      commits/      one file for each commit: 000000000000002a is the 42nd
      checkpoint    the index up to some commit; the commits before it are removed
      tmp/          files that are being written, before they are renamed into place

Paths contain no ids, queue names or payloads, so these cannot lead a write outside the directory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dibs.errors import (
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
)
from dibs.storage.file.access import CorruptFile, check_private, fsync_folder, open_regular_file

#: Version of the format. A version of dibs that knows only lower numbers refuses the directory.
FORMAT: Final = 1
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
#: Bytes of `format` that are read. dibs writes about 40.
MAX_FORMAT_BYTES: Final = 4096

_COMMIT: Final = re.compile("[0-9a-f]{16}")
_READ: Final = os.R_OK | os.X_OK
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY: Final = {errno.EROFS, errno.EACCES, errno.EPERM}


class FormatFile(msgspec.Struct, frozen=True):
    """The content of `format`, without the fields that are only for people."""

    format: int


class Directory:
    """The directory of one file storage: its paths, its creation and the check of its format.

    With `allow_others`, the directory may belong to another user, and other users may write it.
    """

    def __init__(self, root: str, *, allow_others: bool = False) -> None:
        self._allow_others = allow_others
        self.root = Path(root)
        self.format = self.root / "format"
        self.lock = self.root / "lock"
        self.commits = self.root / "commits"
        self.checkpoint = self.root / "checkpoint"
        self.tmp = self.root / "tmp"
        self._commit_prefix = f"{self.commits}/"

    def commit_path(self, number: int) -> str:
        return f"{self._commit_prefix}{number:016x}"

    def commit_numbers(self) -> Iterator[int]:
        """Yield the numbers of the existing commits, in any order. Skip files with other names."""
        with os.scandir(self.commits) as entries:
            for entry in entries:
                if _COMMIT.fullmatch(entry.name):
                    yield int(entry.name, 16)

    def prepare(self) -> bool:
        """Create missing folders and files. Return whether the storage is new (this call created `format`).

        Raise StorageUnavailable for a folder that contains other files or that other users control,
        StorageDamaged for a `format` file that cannot be read or a missing `commits` folder, and
        StorageTooNew for a format that a newer dibs wrote.
        """
        try:
            created = self._create_missing()
        except OSError as error:
            raise self._to_open_error(error) from error
        self._check_format()
        return created

    def _to_open_error(self, error: OSError) -> StorageError:
        doing = f"cannot open {self.root}"
        if isinstance(error, FileExistsError):
            return StorageUnavailable(f"{doing}: it is not a folder")
        if isinstance(error, PermissionError) and self.root.exists() and not os.access(self.root, _READ):
            return StorageUnavailable(
                f"{doing}: this user may not read it; give the user read access to the folder"
            )
        return to_write_error(error, doing)

    def _create_missing(self) -> bool:
        self.root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        if not os.access(self.root, _READ):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.root))
        self._check_private(self.root)
        is_new = not os.path.lexists(self.format)
        if is_new:
            self._refuse_foreign_files()
        elif not self.commits.is_dir() and not os.path.lexists(self.checkpoint):
            raise StorageDamaged(
                f"{self.commits} is missing, and there is no checkpoint: restore the folder from a backup. "
                "If it had no jobs, create an empty folder there"
            )
        for folder in (self.commits, self.tmp):
            if not folder.is_dir():
                folder.mkdir(FOLDER_MODE, exist_ok=True)
            self._check_private(folder)
        if is_new:
            # Sync the names of the folders first: a power loss may not leave `format` without `commits`.
            fsync_folder(str(self.root))
            self._write_format()
        return is_new

    def _check_private(self, folder: Path) -> None:
        if not self._allow_others:
            check_private(folder)

    def _refuse_foreign_files(self) -> None:
        known = {self.lock.name, self.commits.name, self.tmp.name, self.format.name, self.checkpoint.name}
        foreign = sorted(entry.name for entry in self.root.iterdir() if entry.name not in known)
        if foreign:
            raise StorageUnavailable(
                f"{self.root} contains other files ({foreign[0]!r}, ...): give dibs a folder of its own"
            )

    def _write_format(self) -> None:
        from dibs.version import VERSION  # noqa: PLC0415 - needed once, when a directory is created

        text = json.dumps({"format": FORMAT, "made_by": f"dibs {VERSION}"}) + "\n"
        # The process id alone is not unique: several threads of a process may open a new directory at the
        # same time.
        temporary = self.tmp / f"format.{os.getpid()}.{secrets.token_hex(4)}"
        with open(temporary, "wb", buffering=0, opener=_open_private) as file:
            file.write(text.encode())
            # Sync this file in every case, once in the life of a directory. If a power loss removed it, the
            # commits beside it could not be read.
            os.fsync(file.fileno())
        temporary.rename(self.format)

    def _check_format(self) -> None:
        try:
            with open_regular_file(str(self.format)) as file:
                found = msgspec.json.decode(file.read(MAX_FORMAT_BYTES), type=FormatFile).format
        except OSError as error:
            raise to_read_error(error, f"cannot read {self.format}") from error
        except CorruptFile as damage:
            raise StorageDamaged(str(damage)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = 0
        if found < 1:
            raise StorageDamaged(
                f"{self.format} is damaged: it must be one line of JSON with the number of the format"
            )
        if found > FORMAT:
            raise newer_format_error(self.root, found)


def newer_format_error(path: Path, found: int) -> StorageTooNew:
    """Return the error for a file or directory that a newer version of dibs wrote, with format `found`."""
    return StorageTooNew(
        f"{path} has format {found}, and this version of dibs reads up to {FORMAT}: upgrade dibs"
    )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)


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
