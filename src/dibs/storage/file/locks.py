"""The lock that one process holds while it commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from filelock import FileLock, Timeout

from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs.storage.file.directory import FILE_MODE, Directory, refusal

#: filelock looks again after this long. Its default of 50 ms would be most of a job's latency.
POLL: Final = 0.001
#: Longer than any commit or checkpoint takes; a process stopped while it holds the lock is why there is one.
PATIENCE: Final = 60.0


class CommitLock:
    """An exclusive lock across processes, free as soon as its holder dies."""

    def __init__(self, directory: Directory) -> None:
        self._path = directory.lock
        self._lock = FileLock(str(directory.lock), mode=FILE_MODE, thread_local=False)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises StorageUnavailable after a minute, StorageReadOnly where it can't be made."""
        try:
            self._lock.acquire(timeout=PATIENCE, poll_interval=POLL)
        except Timeout:
            raise StorageUnavailable(
                f"{self._path} has been held by another process for {PATIENCE:.0f} s: is one stopped?"
            ) from None
        except OSError as error:
            raise refusal(error, f"cannot lock {self._path}") from error
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """Release the lock, and again if the system refuses: one that is kept stops every other process."""
        try:
            self._lock.release(force=True)
        except OSError:
            try:
                self._lock.release(force=True)
            except OSError as error:
                raise OutcomeUnknown(
                    f"{self._path} cannot be given back ({error.strerror}): what was under way may have "
                    "happened; end this process, so that others can go on"
                ) from error
