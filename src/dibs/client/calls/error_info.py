"""An exception as text: what a storage keeps of it. It is never rebuilt into a live one."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from dibs.model.error_text import checked_error
from dibs.model.job import Error

#: Causes beyond this many say nothing new.
DEEPEST = 8
_ROOM = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120 - pathlib takes longer to import than this room


def error_of(exception: BaseException) -> Error:
    """Return what is kept of an exception, with its causes, cut to the limit (contract 4, error text).

    The traceback begins at the first frame that is not ours.
    """
    return checked_error(_told(exception, DEEPEST, set()))


def _told(exception: BaseException, depth: int, seen: set[int]) -> Error:
    seen.add(id(exception))
    cause = _cause(exception)
    deeper = cause is not None and depth > 1 and id(cause) not in seen
    return Error(
        type=_name(type(exception)),
        message=_message(exception),
        traceback="".join(traceback.format_tb(_theirs(exception.__traceback__))),
        cause=_told(cause, depth - 1, seen) if cause is not None and deeper else None,
    )


def _cause(exception: BaseException) -> BaseException | None:
    if exception.__cause__ is not None or exception.__suppress_context__:
        return exception.__cause__
    return exception.__context__


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(exception: BaseException) -> str:
    try:
        text = str(exception)
    except Exception as broken:  # noqa: BLE001 - a bad __str__ must not hide the failure it belongs to
        text = f"(its message cannot be read: {type(broken).__name__})"
    if isinstance(exception, BaseExceptionGroup):
        parts = (f"\n- {_name(type(part))}: {_message(part)}" for part in exception.exceptions)
        text += "".join(parts)
    return text


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the handler on; all of it when we are all there is."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_ROOM):
        rest = rest.tb_next
    return rest or trace
