"""The lock that allows one process at a time to commit."""

from __future__ import annotations

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


class CommitLock:
    """An exclusive lock across processes, on the file `lock`. The system releases it when its holder dies."""

    def __init__(self, directory: Directory) -> None:
        self._path = directory.lock
        self._lock = FileLock(str(directory.lock), mode=FILE_MODE, thread_local=False)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock during a `with` block.

        Raise StorageUnavailable if another process holds the lock for `ACQUIRE_TIMEOUT` seconds,
        StorageReadOnly if this user may not create the lock file, and OutcomeUnknown if the system refuses to
        release the lock.
        """
        try:
            self._lock.acquire(timeout=ACQUIRE_TIMEOUT, poll_interval=POLL_INTERVAL)
        except Timeout:
            raise StorageUnavailable(
                f"another process has held {self._path} for {ACQUIRE_TIMEOUT:.0f} s: resume or end it"
            ) from None
        except OSError as error:
            raise to_write_error(error, f"cannot lock {self._path}") from error
        try:
            yield
        finally:
            self._release()

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
