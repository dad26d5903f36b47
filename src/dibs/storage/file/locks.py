"""The lock that allows one process at a time to commit."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Final

from filelock import lock_descriptor, unlock_descriptor

from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs.storage.file.directory import LOCK, Directory, to_write_error
from dibs.storage.file.folder import FolderReplaced, Identity, identity_of

#: Pause before the second try to acquire the lock, s. Most commits take about as long. Each further pause is
#: twice as long, up to LAST_PAUSE.
FIRST_PAUSE: Final = 0.000_05
LAST_PAUSE: Final = 0.001
#: Time limit for acquiring the lock, s. Any commit or checkpoint takes less time. The limit is reached if a
#: process is suspended while it holds the lock.
ACQUIRE_TIMEOUT: Final = 60.0


class Turn:
    """The right to run one step: its thread takes it to run the step, or its caller takes it to cancel."""

    def __init__(self) -> None:
        self._free = [True]

    def take(self) -> bool:
        """Return True for the first call, and False for each later one, on any thread."""
        try:
            # `pop` is atomic: of two threads, one gets the item and the other an IndexError.
            return self._free.pop()
        except IndexError:
            return False

    def is_taken(self) -> bool:
        return not self._free


class CommitLock:
    """An exclusive lock across processes, on the file `lock`. The system releases it when its holder dies.

    The file stays open between steps: opening and checking it for each step took longer than a commit.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._path = directory.path_of(LOCK)
        #: The open lock file, and its identity.
        self._file: FileIO | None = None
        self._identity: Identity | None = None
        #: Time on the monotonic clock since which the thread of the storage waits for the lock, or None.
        self._waiting_since: float | None = None

    @contextmanager
    def hold(self, turn: Turn) -> Iterator[None]:
        """Take the turn of a step, and hold the lock during a `with` block.

        Raise CancelledError if the caller has taken the turn before the lock was free, and FolderReplaced if
        another program has replaced the directory or the lock file; then the turn is not taken.
        Raise StorageUnavailable if another process holds the lock for `ACQUIRE_TIMEOUT` seconds,
        StorageReadOnly if this user may not create the lock file, and OutcomeUnknown if the system refuses to
        release the lock.
        """
        self._waiting_since = time.monotonic()
        try:
            self._acquire(turn, self._waiting_since + ACQUIRE_TIMEOUT)
        except OSError as error:
            if not self._directory.is_current():
                raise FolderReplaced from error
            raise to_write_error(error, f"cannot lock {self._path}") from error
        finally:
            self._waiting_since = None
        try:
            if not turn.take():
                raise asyncio.CancelledError
            yield
        finally:
            self._release()

    @property
    def waits_for(self) -> str:
        """The reason why a step has not run, as the end of a sentence "it waited for ..."."""
        since = self._waiting_since
        if since is None:
            return "the step before it, which is writing to the disk"
        return (
            f"the lock file {self._path}, which another process has held for "
            f"{time.monotonic() - since:.1f} s: resume or end that process"
        )

    def close(self) -> None:
        """Close the lock file. The next step opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _acquire(self, turn: Turn, deadline: float) -> None:
        pause = FIRST_PAUSE
        while not self._try_acquire():
            if turn.is_taken():
                raise asyncio.CancelledError
            if time.monotonic() > deadline:
                raise StorageUnavailable(
                    f"another process has held {self._path} for {ACQUIRE_TIMEOUT:.0f} s: resume or end it"
                )
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    def _try_acquire(self) -> bool:
        """Return whether this process has the lock now. Raise FolderReplaced."""
        if not self._directory.is_open:
            raise FolderReplaced
        file = self._file if self._file and not self._file.closed else self._open()
        locked = lock_descriptor(file.fileno(), blocking=False)
        # Other processes lock the file under the name, which may be another file by now.
        if self._directory.identity(LOCK) != self._identity or not self._directory.is_current():
            self.close()
            raise FolderReplaced
        return locked

    def _open(self) -> FileIO:
        self._file = self._directory.open_lock()
        self._identity = identity_of(os.fstat(self._file.fileno()))
        return self._file

    def _release(self) -> None:
        """Release the lock. If the system refuses, try once more: a kept lock blocks every process."""
        if self._file is None or self._file.closed:
            return
        descriptor = self._file.fileno()
        try:
            unlock_descriptor(descriptor)
        except OSError:
            try:
                unlock_descriptor(descriptor)
            except OSError as error:
                raise OutcomeUnknown(
                    f"{self._path} cannot be released ({error.strerror}): the step may have happened or not; "
                    "end this process, so that other processes can commit"
                ) from error
