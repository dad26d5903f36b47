"""Conversion of an exception to `Error`, its stored form: type, message, traceback and causes as text.

dibs never builds an exception from that text: stored data must not choose which class Python imports.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from dibs.model.error_text import message_of, to_storable_error, type_name
from dibs.model.job import Error
from dibs.model.limits import LIMITS

#: Most errors that are stored of a chain of causes, the exception itself included.
MAX_DEPTH = 8
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120 - pathlib takes longer to import than this package


def error_from_exception(exception: BaseException) -> Error:
    """Return the stored form of an exception and its causes, cut to the limit of contract 4, error text.

    The traceback begins at the first frame outside this package. Raises MemoryError, and nothing else.
    """
    try:
        return to_storable_error(_build_error(exception, MAX_DEPTH, set()))
    except MemoryError:
        raise
    except BaseException as broken:  # noqa: BLE001 - attributes of the user's exception may raise anything
        message = f"(no message: describing it raised {type(broken).__name__})"
        return to_storable_error(Error(type=type_name(type(exception)), message=message))


def _build_error(exception: BaseException, depth: int, seen: set[int]) -> Error:
    seen.add(id(exception))
    cause = _find_cause(exception)
    has_next = cause is not None and depth > 1 and id(cause) not in seen
    return Error(
        type=type_name(type(exception)),
        message=_exception_text(exception),
        traceback="".join(traceback.format_tb(_skip_own_frames(exception.__traceback__))),
        cause=_build_error(cause, depth - 1, seen) if cause is not None and has_next else None,
    )


def _find_cause(exception: BaseException) -> BaseException | None:
    if exception.__cause__ is not None or exception.__suppress_context__:
        return exception.__cause__
    return exception.__context__


def _exception_text(exception: BaseException) -> str:
    """Return the message of an exception; that of a group lists the exceptions in it, at any depth."""
    lines = [message_of(exception)]
    size, rest = len(lines[0]), _exceptions_of_group(exception)
    # A loop, because groups may be nested deeper than Python recurses.
    while rest and size < LIMITS.error:
        part = rest.pop()
        rest += _exceptions_of_group(part)
        lines.append(f"- {type_name(type(part))}: {message_of(part)}")
        size += len(lines[-1])
    return "\n".join([*lines, "- (more exceptions are left out)"] if rest else lines)


def _exceptions_of_group(exception: BaseException) -> list[BaseException]:
    """Return the exceptions of a group, the first one last; [] if the exception is no group."""
    return [*reversed(exception.exceptions)] if isinstance(exception, BaseExceptionGroup) else []


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside this package; all of it if it has no such frame."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        rest = rest.tb_next
    return rest or trace
