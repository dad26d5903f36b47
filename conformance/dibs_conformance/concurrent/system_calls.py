"""The calls a process makes to the system for its files, as Python makes them: each may be made to fail."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: What is counted. EINTR is left out: Python itself repeats a call that was interrupted (PEP 475).
OF_OS: Final = (
    *("open", "write", "pwrite", "read", "pread", "fsync", "fdatasync", "ftruncate", "truncate"),
    *("rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir"),
    *("scandir", "listdir", "stat", "lstat", "fstat", "chmod", "fchmod", "utime"),
)
#: No room, no room for this user, a broken disk, too many open files.
ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE)


@dataclass(frozen=True)
class Mishap:
    """An error of the system in place of the n-th call of an order."""

    error: int
    call: int


class System:
    """Stands between a process and the system, once it is put there."""

    def __init__(self) -> None:
        self.calls = 0
        self.failed = ""
        self._mishap: Mishap | None = None
        self._counting = False

    def begin(self, mishap: Mishap | None) -> None:
        """Count anew, and let one call fail."""
        self.calls, self.failed, self._mishap, self._counting = 0, "", mishap, True

    def end(self) -> None:
        self._counting = False

    def stand_between(self) -> None:
        """From now on every call of this process goes through here."""
        for name in OF_OS:
            if hasattr(os, name):
                setattr(os, name, self._through(name, getattr(os, name)))
        fcntl.flock = self._through("flock", fcntl.flock)
        fcntl.lockf = self._through("lockf", fcntl.lockf)
        builtins.open = io.open = self._through("open", builtins.open)

    def _through(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **words: Any) -> Any:
            if self._counting:
                self.calls += 1
                if self._mishap is not None and self.calls == self._mishap.call:
                    self.failed = name
                    raise OSError(self._mishap.error, os.strerror(self._mishap.error))
            return real(*args, **words)

        return call
