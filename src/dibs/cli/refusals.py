"""From an exception to one clear line and an exit code: no traceback, no password."""

from __future__ import annotations

import os
import traceback

from rich_click import ClickException

from dibs.cli.output import Code, plain, warn, write_json
from dibs.errors import BatchRefused, ConfigurationError, DibsError, OutcomeUnknown

#: Set it to see where an error came from.
TRACEBACK = "DIBS_TRACEBACK"


class WrongWords(Exception):
    """What was typed makes no sense, whatever the storage holds."""


def code_of(error: BaseException) -> Code:
    """Return the exit code for an error."""
    if isinstance(error, (ClickException, WrongWords, ConfigurationError)):
        return Code.WRONG_WORDS
    if isinstance(error, OutcomeUnknown):
        return Code.UNKNOWN_OUTCOME
    if isinstance(error, (DibsError, OSError)):
        return Code.REFUSED
    # A mistake of ours half-way through: nobody can say what happened before it.
    return Code.UNKNOWN_OUTCOME


def tell(error: BaseException, *, as_json: bool) -> Code:
    """Print an error on stderr and return the exit code."""
    error = first_of(error)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    message = message_of(error)
    if as_json:
        write_json({"error": {"type": kind_of(error), "message": plain(message)}}, error=True)
    else:
        warn(message)
    return code_of(error)


def first_of(error: BaseException) -> BaseException:
    """Return what went wrong first, where tasks went wrong together; a refused batch speaks for itself."""
    while isinstance(error, BaseExceptionGroup) and not isinstance(error, BatchRefused):
        error = error.exceptions[0]
    return error


def kind_of(error: BaseException) -> str:
    """Return the name of an error, as documented for programs."""
    if isinstance(error, BatchRefused) and len(error.exceptions) == 1:
        return "Refused"
    return "WrongWords" if isinstance(error, (ClickException, WrongWords)) else type(error).__name__


def message_of(error: BaseException) -> str:
    """Return what an error says, in one line."""
    match error:
        case ClickException():
            return _usage(error)
        case BatchRefused():
            return "; ".join(str(refused) for refused in error.exceptions)
        case DibsError() | WrongWords():
            return str(error)
        case OSError() if error.strerror:
            return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        case _:
            return f"{type(error).__name__}: {error} (set {TRACEBACK}=1 to see where)"


def _usage(error: ClickException) -> str:
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".").replace("\n", " ")
    return f"{message} (see {context.command_path} --help)" if context else message
