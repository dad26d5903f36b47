"""The stored text of an error: cut to the limit, and free of characters that a storage cannot keep."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dibs.model.job import Error
from dibs.model.limits import LIMITS, Limits

#: More causes of an error than this are no story but a loop, and would break an encoder's recursion.
MOST_CAUSES: Final = 16
CUT_MARK: Final = "\n[... cut by dibs ...]\n"


def checked_error(error: Error, limits: Limits = LIMITS) -> Error:
    """Return the error as it may be stored: cut, and free of what UTF-8 or a text column cannot keep."""
    return cut_error(_plain(error, MOST_CAUSES), limits.error)


def _plain(error: Error, causes: int) -> Error:
    texts = {
        name: getattr(error, name).replace("\0", "\\0").encode(errors="backslashreplace").decode()
        for name in ("type", "message", "traceback")
    }
    cause = _plain(error.cause, causes - 1) if error.cause is not None and causes > 0 else None
    return replace(error, **texts, cause=cause)


def cut_error(error: Error, limit: int = LIMITS.error) -> Error:
    """Return the error with its texts cut to `limit` bytes in all, the cut marked; the cause goes first."""
    if _error_size(error) <= limit:
        return error
    kind = _cut(error.type, 512)
    message = _cut(error.message, limit // 2)
    room = limit - len(kind.encode()) - len(message.encode())
    return Error(type=kind, message=message, traceback=_cut(error.traceback, room))


def _error_size(error: Error | None) -> int:
    size = 0
    while error is not None:
        size += len(error.type.encode()) + len(error.message.encode()) + len(error.traceback.encode())
        error = error.cause
    return size


def _cut(text: str, limit: int) -> str:
    """Keep both ends: a traceback says where it began and, at its end, what happened."""
    raw = text.encode(errors="replace")
    if len(raw) <= limit:
        return text
    half = max(0, limit - len(CUT_MARK)) // 2
    head = raw[:half].decode(errors="ignore")
    tail = raw[len(raw) - half :].decode(errors="ignore")
    return (head + CUT_MARK + tail).encode()[:limit].decode(errors="ignore")
