"""Output of the commands: lines for people, JSON for programs, and exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec


class ExitCode(IntEnum):
    """The exit codes of all commands; docs/reference/cli.md explains them."""

    DONE = 0
    REFUSED = 1
    USAGE_ERROR = 2
    UNKNOWN_OUTCOME = 3
    INTERRUPTED = 130


#: Matches `user:password@` in text that looks like a URL.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


def escape(text: object) -> str:
    """Return text that is safe to print: control characters are escaped and passwords in URLs replaced."""
    shown = "".join(ch if ch.isprintable() else _escape_char(ch) for ch in str(text))
    return _CREDENTIALS.sub("***@", shown)


def _escape_char(ch: str) -> str:
    return ch.encode("unicode_escape").decode("ascii")


def print_lines(*lines: object) -> None:
    """Print lines on stdout, with control characters and passwords escaped."""
    for line in lines:
        print(escape(line), flush=True)  # noqa: T201 - the output of a command


def print_warning(*lines: object) -> None:
    """Print lines on stderr, escaped, so that programs that read stdout do not see them."""
    for line in lines:
        print(f"dibs: {escape(line)}", file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: Any, *, error: bool = False) -> None:
    """Print a value as JSON on one line, on stdout or with `error` on stderr."""
    text = msgspec.json.encode(value).decode()
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


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
