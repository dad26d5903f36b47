"""The lock that allows one process at a time to commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from filelock import FileLock, Timeout

from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs.storage.file.directory import FILE_MODE, Directory, to_write_error

#: Interval at which filelock tries again, s. Its default of 50 ms would be most of a job's latency.
POLL_INTERVAL: Final = 0.001
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
    """An exclusive lock across processes, on the file `lock`. The system releases it when its holder dies."""

    def __init__(self, directory: Directory) -> None:
        self._path = directory.lock
        self._lock = FileLock(str(directory.lock), mode=FILE_MODE, thread_local=False)
        #: Time on the monotonic clock since which the thread of the storage waits for the lock, or None.
        self._waiting_since: float | None = None

    @contextmanager
    def hold(self, turn: Turn) -> Iterator[None]:
        """Take the turn of a step, and hold the lock during a `with` block.

        Raise CancelledError if the caller has taken the turn before the lock was free.
        Raise StorageUnavailable if another process holds the lock for `ACQUIRE_TIMEOUT` seconds,
        StorageReadOnly if this user may not create the lock file, and OutcomeUnknown if the system refuses to
        release the lock.
        """
        self._waiting_since = time.monotonic()
        try:
            self._lock.acquire(
                timeout=ACQUIRE_TIMEOUT, poll_interval=POLL_INTERVAL, cancel_check=turn.is_taken
            )
        except Timeout:
            if turn.is_taken():
                raise asyncio.CancelledError from None
            raise StorageUnavailable(
                f"another process has held {self._path} for {ACQUIRE_TIMEOUT:.0f} s: resume or end it"
            ) from None
        except OSError as error:
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

    def _release(self) -> None:
        """Release the lock. If the system refuses, try once more: a kept lock blocks every process."""
        try:
            self._lock.release(force=True)
        except OSError:
            try:
                self._lock.release(force=True)
            except OSError as error:
                raise OutcomeUnknown(
                    f"{self._path} cannot be released ({error.strerror}): the step may have happened or not; "
                    "end this process, so that other processes can commit"
                ) from error
