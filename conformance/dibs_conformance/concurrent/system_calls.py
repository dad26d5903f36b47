"""Errors injected into the file system calls that Python code of this process makes."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
from collections.abc import Callable
from typing import Any, Final

from attrs import frozen

#: The functions that are counted. EINTR is not injected: Python itself repeats interrupted calls (PEP 475).
OS_FUNCTIONS: Final = (
    *("open", "write", "pwrite", "read", "pread", "fsync", "fdatasync", "ftruncate", "truncate"),
    *("rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir"),
    *("scandir", "listdir", "stat", "lstat", "fstat", "chmod", "fchmod", "utime"),
)
#: The injected errors: disk full, quota exceeded, I/O error, too many open files.
ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE)


@frozen
class InjectedError:
    """An error number to raise in place of the n-th system call of a program."""

    error: int
    call: int


class SystemCallInjector:
    """Counts the system calls of this process and makes one of them fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.failed = ""
        self._error_point: InjectedError | None = None
        self._counting = False

    def start_counting(self, error_point: InjectedError | None) -> None:
        """Reset the counts, and choose the call to fail."""
        self.calls, self.failed, self._error_point, self._counting = 0, "", error_point, True

    def stop_counting(self) -> None:
        self._counting = False

    def install(self) -> None:
        """Wrap the functions of `os`, `fcntl` and `open`. This cannot be undone."""
        for name in OS_FUNCTIONS:
            if hasattr(os, name):
                setattr(os, name, self._wrap(name, getattr(os, name)))
        fcntl.flock = self._wrap("flock", fcntl.flock)
        fcntl.lockf = self._wrap("lockf", fcntl.lockf)
        builtins.open = io.open = self._wrap("open", builtins.open)

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._counting:
                self.calls += 1
                if self._error_point is not None and self.calls == self._error_point.call:
                    self.failed = name
                    raise OSError(self._error_point.error, os.strerror(self._error_point.error))
            return real(*args, **options)

        return call
