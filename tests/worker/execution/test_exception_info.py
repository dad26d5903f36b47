"""Exceptions as data."""

from __future__ import annotations

import weakref
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dibs.errors import PermanentError, Retry
from dibs.worker.execution.exception_info import OUT_OF_MEMORY, verdict_on


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
        # What says no time says nothing: the backoff counts.
        (with_attributes(retry_at=datetime(1970, 1, 1)), False, None, None),  # noqa: DTZ001 - naive is the case
        (with_attributes(retry_at="soon"), False, None, None),
        (with_attributes(retry_at=float("nan")), False, None, None),
        (with_attributes(retry_at=True), False, None, None),
        (Retry(delay=float("inf")), False, None, None),
    ],
)
def test_an_error_says_when_to_try_again(
    error: Exception, *, permanent: bool, delay: int | None, run_at: int | None
) -> None:
    verdict = verdict_on(error)

    assert (permanent, delay, run_at) == (verdict.permanent, verdict.delay, verdict.run_at)


class Nasty(Exception):
    @property
    def kind(self) -> str:
        raise RuntimeError("no kind")

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_error_that_cannot_be_read_is_an_error_like_others() -> None:
    verdict = verdict_on(Nasty())

    assert not verdict.permanent
    assert "(no message: its __str__ raised RuntimeError)" == verdict.error.message


def test_a_group_says_what_is_in_it() -> None:
    group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    assert "ValueError: a" in verdict_on(group).error.message


class Filler:
    """What fills the memory, while it is there."""


class NoRoom(MemoryError):
    """An error of which nothing can be told while the memory is full."""

    def __init__(self, full: weakref.ref[Filler]) -> None:
        super().__init__("full")
        self.full = full

    @property
    def __cause__(self) -> None:  # type: ignore[override]
        if self.full() is not None:
            raise MemoryError


def filling(elsewhere: list[Filler]) -> None:
    filler = Filler()
    elsewhere.append(filler)
    full = weakref.ref(filler)
    if len(elsewhere) > 1:
        del elsewhere[:]
    raise NoRoom(full)


@pytest.mark.parametrize(("before", "told"), [([Filler()], "full"), ([], OUT_OF_MEMORY.error.message)])
def test_a_full_memory_is_told_of_once_the_handlers_frames_are_cleared(
    before: list[Filler], told: str
) -> None:
    """Else the thread ends with the run in hand, and nobody hears of it. What others hold stays full."""
    with pytest.raises(NoRoom) as caught:
        filling(before)

    verdict = verdict_on(caught.value)

    assert (verdict.error.message, verdict.permanent) == (told, False)
