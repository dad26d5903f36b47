"""Errors of jobs as page models, after the redaction hook."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final

from attrs import frozen

from dibs.model.job import Error
from dibs.web.reading.source import Shown, Source

#: Most errors of a chain of causes that a page shows.
MAX_CAUSES: Final = 5
#: Most characters of a message in a group of failures.
MAX_MESSAGE: Final = 200
#: Most characters of a message that make its pattern.
MAX_COMPARED: Final = 1_000
#: Quoted texts, email addresses and words: parts of a message that may differ between failures of one cause.
_PART: Final = re.compile(
    r"'[^']{0,200}'|\"[^\"]{0,200}\"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)*|[\w-]+"
)
_JOINED: Final = re.compile(r"…(?:[.,:]…)+")


@frozen
class ErrorView:
    """An error of a run, with the errors that caused it."""

    type: str
    kind: str
    message: str
    traceback: str
    causes: tuple[ErrorView, ...] = ()


def error_view(
    source: Source, queue: str, error: Error | None, *, traceback: bool = True
) -> ErrorView | None:
    """Return an error as a page shows it; None without an error."""
    if error is None:
        return None
    causes: list[ErrorView] = []
    cause = error.cause
    while cause is not None and len(causes) < MAX_CAUSES:
        causes.append(_one(source, queue, cause, traceback=traceback))
        cause = cause.cause
    return _one(source, queue, error, traceback=traceback, causes=tuple(causes))


def _one(
    source: Source, queue: str, error: Error, *, traceback: bool, causes: tuple[ErrorView, ...] = ()
) -> ErrorView:
    trace = hidden_text(source, queue, error.traceback) if traceback and error.traceback else ""
    return ErrorView(error.type, error.kind, hidden_message(source, queue, error), trace, causes)


def hidden_message(source: Source, queue: str, error: Error | None) -> str:
    """Return the message of an error after the redaction hook."""
    return hidden_text(source, queue, error.message) if error is not None and error.message else ""


def hidden_text(source: Source, queue: str, text: str) -> str:
    """Return the text of an error after the redaction hook."""
    hidden: Any = source.hide(queue, "error", text)
    return hidden.text if isinstance(hidden, Shown) else str(hidden)


def message_pattern(message: str) -> str:
    """Return the first line of a message with "…" for the parts in which failures of one cause differ.

    These are quoted texts, email addresses, and words with a digit, such as numbers, times, UUIDs and ids:
    "order 7f3a-b8 of ada@example.org: no card" becomes "order … of …: no card".
    """
    line = message.strip().partition("\n")[0][:MAX_COMPARED]
    return _JOINED.sub("…", _PART.sub(_without_value, line))[:MAX_MESSAGE]


def _without_value(part: re.Match[str]) -> str:
    text = part[0]
    # A pattern that asks for the digit takes seconds for a word of 16,000 letters without one.
    return "…" if text[0] in "'\"" or "@" in text or any(map(str.isdecimal, text)) else text


def group_key(source: Source, queue: str, error: Error | None) -> str:
    """Return a short text that failures of one queue, type and pattern of message share.

    The key comes from the message as a page shows it. A key of the stored message would confirm each guess of
    a message that the redaction hook hides, and processes that share no secret could not share a salt.
    """
    kind = "" if error is None else error.type
    pattern = message_pattern(hidden_message(source, queue, error))
    return blake2b(f"{queue}\0{kind}\0{pattern}".encode("utf-8", "replace"), digest_size=8).hexdigest()
