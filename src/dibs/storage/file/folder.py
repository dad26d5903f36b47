"""An open folder: access to the files below it, with checks of their kind, owner and mode before use.

A path is not an identity. The folder under it may be removed, replaced by a copy, or reached by a link that
is switched. So a Folder holds a descriptor, reaches every file below that descriptor, and tells whether the
path still names the same folder. Another user with write access to the folder could replace a file by a link
or a FIFO, so files of these kinds are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from dibs.errors import StorageUnavailable

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
#: Mode bits that let the group or all users write.
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
#: The folder of files that are being written, before they are renamed into place.
TMP: Final = "tmp"

_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK fails at once on a FIFO; without it, open() would wait for the other end.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# O_EXCL: a file that another program has put under the name, such as a hard link, is never written to.
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_OR_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

#: Inode, time of change in ns and size in bytes. A file that another program puts in place of a file differs
#: in one of them, even if it is a copy.
Identity = tuple[int, int, int]


class CorruptFile(Exception):
    """Raised for a damaged file; the message names the file and the fault."""

    def __init__(self, path: str, fault: str = "its length or checksum is wrong") -> None:
        super().__init__(f"{path} is damaged: {fault}")
        self.path = path


class FolderReplaced(Exception):
    """Raised if another program has replaced a folder, or files in it, that this process has open."""


class Folder:
    """A folder with its files. Methods take names relative to the folder, as in "commits/000000000000002a".

    With `allow_others`, the folder may belong to another user, and other users may write it.
    """

    def __init__(self, path: str, *, allow_others: bool = False) -> None:
        self.path = path
        self.allow_others = allow_others
        #: The descriptor of the open folder; -1 if it is closed.
        self._folder = -1
        #: Device and inode of the open folder.
        self._identity = (0, 0)
        #: The bits of _WRITABLE_BY_OTHERS that new folders get, and the mode of new files.
        self._shared = 0
        self._mode = FILE_MODE
        #: User and group of new files, if they differ from those of this process.
        self._owner: tuple[int, int] | None = None

    def __del__(self) -> None:
        self.close()

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def open(self) -> None:
        """Open the folder, and create it and its parents if they are missing.

        Raise StorageUnavailable for a folder that other users control, and OSError.
        """
        self.close()
        _make_folders(Path(self.path))
        self._folder = os.open(self.path, _OPEN_FOLDER)
        found = os.fstat(self._folder)
        self._identity = found.st_dev, found.st_ino
        self._check_private(self.path, found)
        self._choose_rights(found)

    @property
    def is_open(self) -> bool:
        return self._folder >= 0

    def close(self) -> None:
        folder, self._folder = self._folder, -1
        self._identity = (0, 0)
        if folder >= 0:
            os.close(folder)

    def is_current(self) -> bool:
        """Return whether the path still names the folder that is open. Raise OSError."""
        return self.place() == self._identity

    def place(self) -> tuple[int, int] | None:
        """Return device and inode of the folder that the path names now; None without one. Raise OSError."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def exists(self, name: str) -> bool:
        """Return whether a file exists. A failing `read` takes 3 times as long."""
        try:
            os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def identity(self, name: str) -> Identity | None:
        """Return the identity of a file; None if there is no file of this name."""
        try:
            return identity_of(os.stat(name, dir_fd=self._folder, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def names(self, name: str = ".") -> list[str]:
        """Return the names in a subfolder, in any order."""
        descriptor = os.open(name, _OPEN_FOLDER, dir_fd=self._folder)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> BinaryIO:
        """Open a regular file. Follow no symbolic link, and never block on a FIFO without a writer.

        Raise CorruptFile for a link, a folder, a FIFO or a device, and OSError.
        """
        try:
            descriptor = os.open(name, _OPEN_FILE, dir_fd=self._folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptFile(
                    self.path_of(name), "it is a symbolic link, which is not followed"
                ) from None
            if error.errno == errno.ENXIO:
                raise CorruptFile(self.path_of(name), "it is not a regular file") from None
            raise
        try:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            os.close(descriptor)
            raise
        if not is_regular:
            os.close(descriptor)
            raise CorruptFile(self.path_of(name), "it is not a regular file")
        return os.fdopen(descriptor, "rb")

    def write(self, name: str, chunks: Iterable[bytes], *, fsync: bool) -> Identity:
        """Write a file under a temporary name, rename it to `name`, and return its identity.

        Other processes see the complete file or, if a write fails, no change. A failed write leaves no
        temporary file. With `fsync`, the content survives a power loss; `sync` is for the name of the file.
        """
        temporary = f"{TMP}/{name.rpartition('/')[2]}"
        descriptor = self._create(temporary)
        try:
            try:
                for chunk in chunks:
                    _write_all(descriptor, chunk)
                if fsync:
                    os.fsync(descriptor)
                found = self._give_rights(descriptor)
            finally:
                os.close(descriptor)
            os.rename(temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            with suppress(OSError):
                self.remove(temporary)
            raise
        return identity_of(found)

    def _create(self, name: str) -> int:
        """Create a file. First remove a file of this name, which a killed process may have left."""
        try:
            return os.open(name, _NEW_FILE, FILE_MODE, dir_fd=self._folder)
        except FileExistsError:
            self.remove(name)
            return os.open(name, _NEW_FILE, FILE_MODE, dir_fd=self._folder)

    def open_or_create(self, name: str) -> int:
        """Open a file for locking or writing. Return its descriptor."""
        descriptor = os.open(name, _OPEN_OR_CREATE, FILE_MODE, dir_fd=self._folder)
        try:
            self._give_rights(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def allocate(self, name: str, size: int) -> None:
        """Give a file a size in bytes, with space on the disk for all of it. Create it if it is missing.

        Raise OSError, with the file as before.
        """
        descriptor = self.open_or_create(name)
        try:
            before = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, min(before, size))
            if size > before:
                try:
                    # Without this function, on macOS, the file has a size and no space.
                    getattr(os, "posix_fallocate", _extend)(descriptor, 0, size)
                except OSError:
                    os.ftruncate(descriptor, before)
                    raise
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._folder)

    def rename(self, name: str, to: str) -> None:
        os.rename(name, to, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def sync(self, name: str = ".") -> None:
        """Sync a file, or the names in a folder, so that they survive a power loss.

        The fsync of a file syncs only its content.
        """
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def check_subfolder(self, name: str) -> None:
        """Check the owner and mode of a subfolder, and create it if it is missing."""
        try:
            descriptor = os.open(name, _OPEN_FOLDER, dir_fd=self._folder)
        except FileNotFoundError:
            self._make_subfolder(name)
            descriptor = os.open(name, _OPEN_FOLDER, dir_fd=self._folder)
        try:
            self._check_private(self.path_of(name), os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _make_subfolder(self, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, FOLDER_MODE, dir_fd=self._folder)
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=self._folder)
            mode = FOLDER_MODE | self._shared | self._shared << 1 | self._shared >> 1
            os.chmod(name, mode, dir_fd=self._folder)

    # -- rights --------------------------------------------------------------------------------------

    def _check_private(self, path: str, found: os.stat_result) -> None:
        """Raise StorageUnavailable for a folder of another user, or one that other users may write."""
        if self.allow_others:
            return
        if found.st_uid != os.geteuid():
            raise StorageUnavailable(
                f"{path} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}: run "
                "it as the owner, or open the storage with allow_others=1 if you trust the owner"
            )
        if found.st_mode & _WRITABLE_BY_OTHERS:
            raise StorageUnavailable(
                f"{path} may be written by other users (mode {stat.S_IMODE(found.st_mode):04o}): run "
                "chmod go-w on it, or open the storage with allow_others=1 if you trust them"
            )

    def _choose_rights(self, folder: os.stat_result) -> None:
        """Choose the owner and mode of new files, so that all who may write the folder can use them.

        Otherwise one command of the administrator would lock the owner out of the storage.
        """
        self._shared = folder.st_mode & _WRITABLE_BY_OTHERS if self.allow_others else 0
        self._mode = FILE_MODE | self._shared | self._shared << 1
        self._owner = (folder.st_uid, folder.st_gid) if os.geteuid() == 0 else None

    def _give_rights(self, descriptor: int) -> os.stat_result:
        """Correct the owner and mode of a file of this process, and return its status."""
        found = os.fstat(descriptor)
        if self._owner is not None and self._owner != (found.st_uid, found.st_gid):
            os.fchown(descriptor, *self._owner)
        # The umask may have removed rights. Another owner may have chosen other rights.
        if stat.S_IMODE(found.st_mode) != self._mode and os.geteuid() in (0, found.st_uid):
            os.fchmod(descriptor, self._mode)
        return found


def identity_of(found: os.stat_result) -> Identity:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _make_folders(path: Path) -> None:
    """Create a folder and its missing parents, which this process can use whatever its umask is."""
    missing = [folder for folder in path.parents if not os.path.lexists(folder)]
    with suppress(FileExistsError):
        for folder in reversed(missing):
            folder.mkdir()
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
    with suppress(FileExistsError):
        path.mkdir(FOLDER_MODE)
        path.chmod(FOLDER_MODE)


def _extend(descriptor: int, _: int, size: int) -> None:
    os.ftruncate(descriptor, size)


def _write_all(descriptor: int, chunk: bytes) -> None:
    written = os.write(descriptor, chunk)
    while written < len(chunk):
        # A disk that fills up writes a part of the bytes first; the next write raises the error.
        written += os.write(descriptor, memoryview(chunk)[written:])
