"""Exceptions as stored errors and verdicts."""

from __future__ import annotations

import weakref
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dibs.errors import PermanentError, Retry
from dibs.worker.execution.exception_info import OUT_OF_MEMORY, verdict_on_error


def with_attributes(**attributes: Any) -> Exception:
    error = Exception("no")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "permanent", "delay", "run_at"),
    [
        (ValueError(), False, None, None),
        (PermanentError(), True, None, None),
        (with_attributes(kind="permanent"), True, None, None),
        (with_attributes(kind="retriable"), False, None, None),
        (Retry(), False, None, None),
        (Retry(delay=1.5), False, 1500, None),
        (Retry(delay=timedelta(minutes=1)), False, 60_000, None),
        (Retry(delay=-3), False, 0, None),
        (Retry(at=datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)), False, None, 5000),
        (Retry(at=datetime(1970, 1, 1, 1, 0, tzinfo=timezone(timedelta(hours=1)))), False, None, 0),
        (with_attributes(retry_at=5), False, None, 5000),
        (with_attributes(retry_at=datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)), False, None, 5000),
        # Values that are not a time are ignored: the backoff counts.
        (with_attributes(retry_at=datetime(1970, 1, 1)), False, None, None),  # noqa: DTZ001 - naive is the case
        (with_attributes(retry_at="soon"), False, None, None),
        (with_attributes(retry_at=float("nan")), False, None, None),
        (with_attributes(retry_at=True), False, None, None),
        (Retry(delay=float("inf")), False, None, None),
    ],
)
def test_an_error_sets_the_time_of_the_retry(
    error: Exception, *, permanent: bool, delay: int | None, run_at: int | None
) -> None:
    verdict = verdict_on_error(error)

    assert (permanent, delay, run_at) == (verdict.permanent, verdict.delay, verdict.run_at)


class Unreadable(Exception):
    @property
    def kind(self) -> str:
        raise RuntimeError("no kind")

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_without_readable_text_is_an_ordinary_error() -> None:
    verdict = verdict_on_error(Unreadable())

    assert not verdict.permanent
    assert "(no message: its __str__ raised RuntimeError)" == verdict.error.message


def test_a_group_lists_its_errors() -> None:
    group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    assert "ValueError: a" in verdict_on_error(group).error.message


class Filler:
    """An object that fills the memory while it lives."""


class FullMemory(MemoryError):
    """An error that cannot be described while the memory is full."""

    def __init__(self, full: weakref.ref[Filler]) -> None:
        super().__init__("full")
        self.full = full

    @property
    def __cause__(self) -> None:  # type: ignore[override]
        if self.full() is not None:
            raise MemoryError


def fill_memory(references: list[Filler]) -> None:
    filler = Filler()
    references.append(filler)
    full = weakref.ref(filler)
    if len(references) > 1:
        del references[:]
    raise FullMemory(full)


@pytest.mark.parametrize(("references", "message"), [([Filler()], "full"), ([], OUT_OF_MEMORY.error.message)])
def test_an_error_of_full_memory_is_stored_after_the_frames_are_cleared(
    references: list[Filler], message: str
) -> None:
    """Otherwise the thread would end without a verdict on its run.

    Objects that others reference still fill the memory: then the verdict is OUT_OF_MEMORY.
    """
    with pytest.raises(FullMemory) as caught:
        fill_memory(references)

    verdict = verdict_on_error(caught.value)

    assert (verdict.error.message, verdict.permanent) == (message, False)
