"""Failures for exceptions of the storage under test, and for calls that do not return.

The failure names the verb with its arguments, the exception, and the last lines of its traceback. All of
this comes from the frames of the traceback, so a call costs nothing until it fails.
"""

from __future__ import annotations

import inspect
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from dibs.storage.protocol import Storage
from dibs_conformance.report.call_text import format_value
from dibs_conformance.report.values import LawFailure

LAW: Final = "a call returns, or raises an error of the contract"
#: Lines of a traceback in a report, and letters of an error text.
TRACEBACK_LINES: Final = 8
LONGEST_TEXT: Final = 2000
#: Folders whose frames are not code of the storage: the kit, the standard library.
KIT: Final = str(Path(__file__).parents[1])
STANDARD_LIBRARY: Final = str(Path(inspect.__file__).parent)
VERBS: Final = frozenset(name for name in vars(Storage) if not name.startswith("_"))
#: Functions in which a storage is opened or closed, by the kit or by `async with`.
STEPS: Final = {
    "_enter_context": "open",
    "__aenter__": "open",
    "_exit_context": "close",
    "__aexit__": "close",
}
UNKNOWN_CALL: Final = "a call"

Frames = Sequence[tuple[FrameType, int]]


class StorageFailed(Exception):
    """An exception of the storage, or a call without an end, with the failure that reports it."""

    def __init__(self, failure: LawFailure) -> None:
        super().__init__(failure.why)
        self.failure = failure

    def __reduce__(self) -> tuple[type[StorageFailed], tuple[LawFailure]]:
        return type(self), (self.failure,)


class StorageExited(BaseException):
    """Raised in place of an exit of the kit's own process, which a storage asked for with os._exit."""


def exception_failure(error: BaseException, story: tuple[str, ...] = (), law: str = LAW) -> LawFailure:
    """Return the failure for an exception, with the calls that led to it.

    An exception without a frame of the storage was raised while the kit read an answer.
    """
    if isinstance(error, StorageFailed):
        found = error.failure
        return LawFailure(law=found.law, why=found.why, story=found.story or story)
    frames = list(traceback.walk_tb(error.__traceback__))
    where = describe_call(frames)
    if where == UNKNOWN_CALL and not storage_frames(frames):
        where = "an answer that the kit cannot read"
    return LawFailure(law=law, why=f"{where} raised {raised_text(error)}", story=story)


def raised_text(error: BaseException) -> str:
    """Return an exception with the last lines of its traceback that are code of the storage."""
    lines = storage_lines(list(traceback.walk_tb(error.__traceback__)))
    return "\n".join([error_text(error), *lines])


def hang_failure(frames: Frames, seconds: float, story: tuple[str, ...] = ()) -> LawFailure:
    """Return the failure for a call that did not return within `seconds`. `frames` show where it waits."""
    why = f"{describe_call(frames)} did not return within {seconds:g} s"
    return LawFailure(law=LAW, why="\n".join([why, *storage_lines(frames)]), story=story)


def error_text(error: BaseException) -> str:
    """Return the class and the text of an exception; of a group, also those of its exceptions."""
    text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT] if str(error) else type(error).__name__
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return text + "".join(f"; {error_text(one)}" for one in inside[:3])


def describe_call(frames: Frames) -> str:
    """Return the verb with its arguments, "open", "close", or UNKNOWN_CALL if the frames show none."""
    for frame, _ in frames:
        name = frame.f_code.co_name
        if name in VERBS and not is_kit(frame):
            return f"{name}({', '.join(arguments(frame))})"
    steps = [STEPS[frame.f_code.co_name] for frame, _ in frames if frame.f_code.co_name in STEPS]
    return steps[-1] if steps else UNKNOWN_CALL


def arguments(frame: FrameType) -> Iterator[str]:
    """Yield the arguments of a method, as "limit=10". Values that cannot be shown have their type instead."""
    names, starred, named, values = inspect.getargvalues(frame)
    for name in (*names[1:], *(extra for extra in (starred, named) if extra and values.get(extra))):
        if name in values:
            yield f"{name}={shown_value(values[name])}"


def shown_value(value: object) -> str:
    try:
        return format_value(value)[:LONGEST_TEXT]
    except Exception:  # noqa: BLE001 - the storage may have put anything here
        return f"<{type(value).__name__}>"


def storage_lines(frames: Frames) -> list[str]:
    """Return the last lines of the traceback that are code of the storage."""
    summary = traceback.StackSummary.extract(iter(storage_frames(frames)), limit=-(TRACEBACK_LINES // 2))
    return [
        line
        for entry in summary
        for line in (
            f"  {Path(entry.filename).name}, line {entry.lineno}, in {entry.name}",
            f"    {entry.line}",
        )
    ]


def storage_frames(frames: Frames) -> Frames:
    """Return the frames after the last one of the kit, without those of the standard library."""
    calls = max((at for at, (frame, _) in enumerate(frames) if is_kit(frame)), default=-1)
    return [
        (frame, line)
        for frame, line in frames[calls + 1 :]
        if not frame.f_code.co_filename.startswith(STANDARD_LIBRARY)
    ]


def is_kit(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(KIT)


def describe_exit(code: int | None) -> str:
    """Return how a process ended, from its exit code: "with code 3" or "by SIGSEGV"."""
    if code is None or code >= 0:
        return f"with code {code}"
    return f"by {signal.Signals(-code).name}"


def awaiting_frames(coroutine: object) -> Frames:
    """Return the frames of a suspended coroutine and of those that it awaits, outermost first."""
    frames: list[tuple[FrameType, int]] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames


def thread_frames(ident: int | None) -> Frames:
    """Return the frames that a thread runs now, outermost first."""
    frame = sys._current_frames().get(ident or 0)  # noqa: SLF001 - the documented way to them
    return list(traceback.walk_stack(frame))[::-1] if frame is not None else []
