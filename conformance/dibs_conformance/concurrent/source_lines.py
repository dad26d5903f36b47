"""The lines of a storage's own code: each is a moment at which something may be made to happen."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

Trace = Callable[[FrameType, str, Any], Any]


class Lines:
    """Calls `on_line` before each line in some folders is run, in the threads that are watched."""

    def __init__(self, folders: tuple[str, ...], on_line: Callable[[], None]) -> None:
        self._folders, self._on_line = folders, on_line
        self._knows: dict[CodeType, bool] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this thread, and for good those that are started meanwhile."""
        if not self._folders:
            yield
            return
        before = sys.gettrace()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)

    def _trace(self, frame: FrameType, _: str, __: Any) -> Trace | None:
        code = frame.f_code
        watched = self._knows.get(code)
        if watched is None:
            watched = self._knows[code] = code.co_filename.startswith(self._folders)
        return self._line if watched else None

    def _line(self, _: FrameType, event: str, __: Any) -> Trace:
        if event == "line":
            self._on_line()
        return self._line


def homes(kind: type) -> tuple[str, ...]:
    """The folders whose lines are steps: those of the storage's class and of what it inherits from."""
    modules = [sys.modules[cls.__module__] for cls in kind.__mro__ if cls.__module__ in sys.modules]
    return tuple({f"{folder(module)}/" for module in modules if is_storage(module)})


def is_storage(module: ModuleType) -> bool:
    """Whether the module is part of a storage: not the standard library, and not the protocol."""
    name = module.__name__
    return name.partition(".")[0] not in sys.stdlib_module_names and name != "dibs.storage.protocol"


def folder(module: ModuleType) -> str:
    return str(Path(module.__file__ or "").resolve().parent)
