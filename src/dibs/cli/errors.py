"""Error output: one line on stderr and an exit code for each exception, without tracebacks and passwords."""

from __future__ import annotations

import os
import traceback

from rich_click import ClickException

from dibs.cli.output import ExitCode, OutputFailed, escape, print_json, print_warning
from dibs.errors import BatchRefused, ConfigurationError, DibsError, OutcomeUnknown

#: Environment variable that makes the command line print the traceback of an error.
TRACEBACK_VARIABLE = "DIBS_TRACEBACK"


class UsageError(Exception):
    """Raised for a mistake in the arguments of a command, before the command changes the storage."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error: 1 for a refusal, 2 for wrong usage, 3 for an unknown effect.

    4 is for output that could not be written after the effect.
    """
    if isinstance(error, OutputFailed):
        return ExitCode.OUTPUT_FAILED
    if isinstance(error, (ClickException, UsageError, ConfigurationError)):
        return ExitCode.USAGE_ERROR
    if isinstance(error, OutcomeUnknown):
        return ExitCode.UNKNOWN_OUTCOME
    if isinstance(error, (DibsError, OSError)):
        return ExitCode.REFUSED
    # Any other exception is a bug in dibs, and the storage may have been changed before it.
    return ExitCode.UNKNOWN_OUTCOME


def print_error(error: BaseException, *, as_json: bool) -> ExitCode:
    error = first_error(error)
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    message = error_message(error)
    if not message:
        return exit_code_of(error)
    if as_json:
        print_json({"error": {"type": error_type(error), "message": escape(message)}}, error=True)
    else:
        print_warning(message)
    return exit_code_of(error)


def first_error(error: BaseException) -> BaseException:
    """Return the first error of an exception group. A BatchRefused is returned as it is."""
    while isinstance(error, BaseExceptionGroup) and not isinstance(error, BatchRefused):
        error = error.exceptions[0]
    return error


def error_type(error: BaseException) -> str:
    """Return the `type` of an error for JSON output: the name of its class.

    It is "UsageError" for errors of click, and "Refused" for a batch with one refused item.
    """
    if isinstance(error, BatchRefused) and len(error.exceptions) == 1:
        return "Refused"
    return "UsageError" if isinstance(error, (ClickException, UsageError)) else type(error).__name__


def error_message(error: BaseException) -> str:
    """Return the text that the command line prints for an error, on one line."""
    match error:
        case ClickException():
            return _usage_message(error)
        case BatchRefused():
            return "; ".join(str(refused) for refused in error.exceptions)
        case DibsError() | UsageError() | OutputFailed():
            return str(error)
        case OSError() if error.strerror:
            return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        case _:
            hint = f"this is a bug in dibs; set {TRACEBACK_VARIABLE}=1 to print the traceback"
            return f"{type(error).__name__}: {error} ({hint})"


def _usage_message(error: ClickException) -> str:
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".").replace("\n", " ")
    return f"{message} (see {context.command_path} --help)" if context else message
