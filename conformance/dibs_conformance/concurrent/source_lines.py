"""Tracing of the lines of storage code. Each line is a point at which a client can be paused or killed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

Trace = Callable[[FrameType, str, Any], Any]


class LineTracer:
    """Calls `on_line` before each line of code below some folders, in the traced threads.

    It calls `on_coroutine` whenever a coroutine begins or continues there.
    """

    def __init__(
        self,
        folders: tuple[str, ...],
        on_line: Callable[[], None],
        on_coroutine: Callable[[], None] = lambda: None,
    ) -> None:
        self._folders, self._on_line, self._on_coroutine = folders, on_line, on_coroutine
        self._is_traced: dict[CodeType, bool] = {}

    @contextmanager
    def trace(self) -> Iterator[None]:
        """Trace this thread while the context lasts. Threads started within are traced until they end."""
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
        is_traced = self._is_traced.get(code)
        if is_traced is None:
            is_traced = self._is_traced[code] = code.co_filename.startswith(self._folders)
        if not is_traced:
            return None
        if code.co_flags & CO_COROUTINE:
            self._on_coroutine()
        return self._trace_line

    def _trace_line(self, _: FrameType, event: str, __: Any) -> Trace:
        if event == "line":
            self._on_line()
        return self._trace_line


def source_folders(kind: type) -> tuple[str, ...]:
    """Return the folders of the storage's class and its base classes."""
    modules = [sys.modules[cls.__module__] for cls in kind.__mro__ if cls.__module__ in sys.modules]
    return tuple({f"{folder(module)}/" for module in modules if is_storage_module(module)})


def is_storage_module(module: ModuleType) -> bool:
    """Return whether a module belongs to a storage, not to the standard library or the protocol."""
    name = module.__name__
    return name.partition(".")[0] not in sys.stdlib_module_names and name != "dibs.storage.protocol"


def folder(module: ModuleType) -> str:
    return str(Path(module.__file__ or "").resolve().parent)
