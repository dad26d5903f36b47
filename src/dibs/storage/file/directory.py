"""What lies where in the directory of a file storage, and the words for what the file system refuses.

    jobs/
      format        one line of JSON: the format's number, and who wrote it first
      lock          held for each commit, by whichever process writes
      commits/      one file for each commit: 000000000000002a is the 42nd
      checkpoint    everything up to some commit; the commits before it are gone
      tmp/          files on their way to their name

No id, queue or payload ever becomes part of a path.
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

from dibs.errors import (
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
)

#: A newer number means that older versions can't read the directory.
FORMAT: Final = 1
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_COMMIT: Final = re.compile("[0-9a-f]{16}")
_READ: Final = os.R_OK | os.X_OK
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY: Final = {errno.EROFS, errno.EACCES, errno.EPERM}


class Directory:
    """The paths of one storage."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.format = self.root / "format"
        self.lock = self.root / "lock"
        self.commits = self.root / "commits"
        self.checkpoint = self.root / "checkpoint"
        self.tmp = self.root / "tmp"

    def commit(self, number: int) -> str:
        """Return the path of a commit."""
        return f"{self.commits}/{number:016x}"

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the commits there are, in no order; strange names are passed over."""
        with os.scandir(self.commits) as entries:
            for entry in entries:
                if _COMMIT.fullmatch(entry.name):
                    yield int(entry.name, 16)

    def prepare(self) -> bool:
        """Make what is missing, refuse what is not ours or too new for us; tell whether it was made now."""
        try:
            made = self._make()
        except OSError as error:
            raise self._unopened(error) from error
        self._check_format()
        return made

    def _unopened(self, error: OSError) -> StorageError:
        doing = f"cannot open {self.root}"
        if isinstance(error, FileExistsError):
            return StorageUnavailable(f"{doing}: it is no folder")
        if isinstance(error, PermissionError) and self.root.exists() and not os.access(self.root, _READ):
            return StorageUnavailable(f"{doing}: this user may not read it")
        return refusal(error, doing)

    def _make(self) -> bool:
        self.root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        if not self.format.exists():
            self._refuse_foreign()
        for folder in (self.commits, self.tmp):
            if not folder.is_dir():
                folder.mkdir(FOLDER_MODE, exist_ok=True)
        made = not self.format.exists()
        if made:
            self._write_format()
        return made

    def _refuse_foreign(self) -> None:
        ours = {self.lock.name, self.commits.name, self.tmp.name, self.format.name, self.checkpoint.name}
        strange = sorted(entry.name for entry in self.root.iterdir() if entry.name not in ours)
        if strange:
            raise StorageUnavailable(
                f"{self.root} holds other things ({strange[0]!r}, ...): give dibs a folder of its own"
            )

    def _write_format(self) -> None:
        from dibs.version import VERSION  # noqa: PLC0415 - read once, when a directory is made

        text = json.dumps({"format": FORMAT, "made_by": f"dibs {VERSION}"}) + "\n"
        # Not only of this process: several threads of it may open a new place at the same time.
        temporary = self.tmp / f"format.{os.getpid()}.{secrets.token_hex(4)}"
        with open(temporary, "w", opener=_private) as file:
            file.write(text)
            file.flush()
            # Once in the life of a directory; without it a power loss leaves commits that nobody may read.
            os.fsync(file.fileno())
        temporary.rename(self.format)

    def _check_format(self) -> None:
        try:
            found = json.loads(self.format.read_text())["format"]
        except OSError as error:
            raise unreadable(error, f"cannot read {self.format}") from error
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise StorageDamaged(f"{self.format} is not what dibs writes there")
        if found > FORMAT:
            raise too_new(self.root, found)


def too_new(place: Path, found: int) -> StorageTooNew:
    """Return the error for what a newer major version wrote."""
    return StorageTooNew(
        f"{place} has format {found}, and this version of dibs reads up to {FORMAT}: upgrade dibs"
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, FILE_MODE)


def refusal(error: OSError, doing: str) -> StorageError:
    """Return our error for one of the file system's; nothing has happened."""
    reason = f"{doing}: {_reason(error)}"
    if error.errno in _FULL:
        return StorageFull(f"{reason}. Nothing was written; make room and repeat")
    if error.errno in _READ_ONLY:
        return StorageReadOnly(f"{reason}. Nothing was written; give this user the right to write there")
    return StorageUnavailable(reason)


def unreadable(error: OSError, doing: str) -> StorageError:
    """Return our error for what the file system does not let us read."""
    return StorageUnavailable(f"{doing}: {_reason(error)}")


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{reason} ({error.filename})" if error.filename else reason
