"""Access to files and folders: checks of their kind, owner and mode before use, and the sync of a folder.

Another user with write access to the folder could replace a file by a link or a FIFO, or replace commits.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from dibs.errors import StorageUnavailable

#: Mode bits that let the group or all users write.
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class CorruptFile(Exception):
    """Raised for a damaged file; the message names the file and the fault."""

    def __init__(self, path: str, fault: str = "its length or checksum is wrong") -> None:
        super().__init__(f"{path} is damaged: {fault}")


def open_regular_file(path: str) -> BinaryIO:
    """Open a regular file. Follow no symbolic link, and never block on a FIFO without a writer.

    Raise CorruptFile for a link, a folder, a FIFO or a device, and OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CorruptFile(path, "it is a symbolic link, which is not followed") from None
        if error.errno == errno.ENXIO:
            raise CorruptFile(path, "it is not a regular file") from None
        raise
    try:
        is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    if not is_regular:
        os.close(descriptor)
        raise CorruptFile(path, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def check_private(folder: Path) -> None:
    """Raise StorageUnavailable for a folder of another user, or one that other users may write."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise StorageUnavailable(
            f"{folder} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}: run it "
            "as the owner, or open the storage with allow_others=1 if you trust the owner"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise StorageUnavailable(
            f"{folder} may be written by other users (mode {stat.S_IMODE(found.st_mode):04o}): run "
            "chmod go-w on it, or open the storage with allow_others=1 if you trust them"
        )


def fsync_folder(path: str) -> None:
    """Sync a folder, so that new names in it survive a power loss. fsync of a file syncs only its content."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
