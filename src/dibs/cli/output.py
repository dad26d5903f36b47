"""Output of the commands: lines for people, JSON for programs, and exit codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec
import rich_click as click

from dibs.model.error_text import summarize_exception


class ExitCode(IntEnum):
    """The exit codes of all commands; docs/reference/cli.md explains them."""

    DONE = 0
    REFUSED = 1
    USAGE_ERROR = 2
    UNKNOWN_OUTCOME = 3
    OUTPUT_FAILED = 4
    INTERRUPTED = 130


class OutputFailed(Exception):
    """Raised if stdout takes no more output: its disk is full, or its reader has ended."""


#: Matches `user:password@` in text that looks like a URL.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


def escape(text: object) -> str:
    """Return text that is safe to print: control characters are escaped and passwords in URLs replaced."""
    shown = "".join(ch if ch.isprintable() else _escape_char(ch) for ch in str(text))
    return _CREDENTIALS.sub("***@", shown)


def _escape_char(ch: str) -> str:
    return ch.encode("unicode_escape").decode("ascii")


def echo(text: str) -> None:
    """Print text on stdout, without its styles unless stdout is a terminal. Raise OutputFailed."""
    try:
        click.echo(text)
    except OSError as error:
        _discard(1)
        if isinstance(error, BrokenPipeError):
            raise OutputFailed("") from error  # `| head` has read enough
        reason = error.strerror or summarize_exception(error)
        raise OutputFailed(
            f"the output could not be written: {reason}; what the command has stored or changed stays"
        ) from error


def print_lines(*lines: object) -> None:
    """Print lines on stdout, with control characters and passwords escaped. Raise OutputFailed."""
    for line in lines:
        echo(escape(line))


def print_warning(*lines: object) -> None:
    """Print lines on stderr, escaped, so that programs that read stdout do not see them."""
    for line in lines:
        _print_on_stderr(f"dibs: {escape(line)}")


def print_json(value: Any, *, error: bool = False) -> None:
    """Print a value as JSON on one line, on stdout or with `error` on stderr. Raise OutputFailed."""
    text = msgspec.json.encode(value).decode()
    if error:
        _print_on_stderr(text)
    else:
        echo(text)


def _print_on_stderr(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    except OSError:
        _discard(2)


def _discard(stream: int) -> None:
    """Replace a standard stream that failed by /dev/null.

    Python flushes it at the exit, and an error there changes the exit code to 120.
    """
    with open(os.devnull, "wb") as null:  # noqa: PTH123 - a device, for its file descriptor
        os.dup2(null.fileno(), stream)


def print_answers(
    queue: str,
    ids: Sequence[str],
    answers: Sequence[str],
    *,
    meanings: Mapping[str, str],
    good: tuple[str, ...],
    json: bool,
) -> ExitCode:
    """Print the answer of the storage for each id, such as "cancelled", with its meaning in words.

    Return ExitCode.DONE if all answers are in `good`, else ExitCode.REFUSED.
    """
    if json:
        jobs = [{"id": id, "answer": answer} for id, answer in zip(ids, answers, strict=True)]
        print_json({"queue": queue, "jobs": jobs})
    else:
        width = max(map(len, answers), default=0)
        for id, answer in zip(ids, answers, strict=True):
            meaning = meanings.get(answer)
            print_lines(f"{answer:<{width}}  {queue}/{id}{f': {meaning}' if meaning else ''}")
    return ExitCode.DONE if all(answer in good for answer in answers) else ExitCode.REFUSED
