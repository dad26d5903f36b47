"""The text of an exception, and its stored form: cut to a limit, without characters that no storage keeps."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dibs.model.job import Error
from dibs.model.limits import LIMITS, Limits

#: The most causes (exceptions that led to the error) that are kept. A chain of causes can be a loop, and an
#: encoder would follow it without end.
MAX_CAUSES: Final = 16
#: The mark that replaces the middle of a text that was too long.
CUT_MARK: Final = "\n[... cut by dibs ...]\n"


def summarize_exception(exception: BaseException) -> str:
    """Return an exception as text for a log line: its message, or its type if the message is empty."""
    return message_of(exception) or type_name(type(exception))


def message_of(exception: BaseException) -> str:
    """Return the message of an exception; "" for one without a message, such as a TimeoutError of asyncio."""
    try:
        # As an exact str: a subclass may override the methods that are called later.
        return str.__str__(str(exception))
    except BaseException as broken:  # noqa: BLE001 - a __str__ that raises must not hide the exception
        return f"(no message: its __str__ raised {type(broken).__name__})"


def type_name(kind: type) -> str:
    """Return the name of a class with its module, without the module for a built-in one."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def to_storable_error(error: Error, limits: Limits = LIMITS) -> Error:
    """Return the error cut to `limits.error` bytes of text, with NUL and lone surrogates escaped."""
    return cut_error(_escape_texts(error, MAX_CAUSES), limits.error)


def _escape_texts(error: Error, causes: int) -> Error:
    texts = {
        name: getattr(error, name).replace("\0", "\\0").encode(errors="backslashreplace").decode()
        for name in ("type", "message", "traceback")
    }
    cause = _escape_texts(error.cause, causes - 1) if error.cause is not None and causes > 0 else None
    return replace(error, **texts, cause=cause)


def cut_error(error: Error, limit: int = LIMITS.error) -> Error:
    """Return the error with at most `limit` bytes of text.

    An error that fits is returned unchanged. A longer error loses its causes and the middle of its texts;
    CUT_MARK stands at each cut.
    """
    if _error_size(error) <= limit:
        return error
    kind = _cut_middle(error.type, 512)
    message = _cut_middle(error.message, limit // 2)
    rest = limit - len(kind.encode()) - len(message.encode())
    return Error(type=kind, message=message, traceback=_cut_middle(error.traceback, rest), kind=error.kind)


def _error_size(error: Error | None) -> int:
    size = 0
    while error is not None:
        size += len(error.type.encode()) + len(error.message.encode()) + len(error.traceback.encode())
        error = error.cause
    return size


def _cut_middle(text: str, limit: int) -> str:
    """Cut the middle out of a text of more than `limit` bytes. Both ends of a traceback are useful."""
    raw = text.encode(errors="replace")
    if len(raw) <= limit:
        return text
    half = max(0, limit - len(CUT_MARK)) // 2
    head = raw[:half].decode(errors="ignore")
    tail = raw[len(raw) - half :].decode(errors="ignore")
    return (head + CUT_MARK + tail).encode()[:limit].decode(errors="ignore")
