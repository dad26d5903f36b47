"""Exceptions as stored errors and verdicts."""

from __future__ import annotations

import weakref
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dibs.errors import PermanentError, Retry
from dibs.model.limits import LATEST_TIME, LONGEST_TIME
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
        (Retry(delay=10**400), False, LONGEST_TIME, None),
        (Retry(delay=-(10**400)), False, 0, None),
        (Retry(delay=timedelta.max), False, LONGEST_TIME, None),
        (with_attributes(retry_at=10**400), False, None, LATEST_TIME),
        (with_attributes(retry_at=datetime.min.replace(tzinfo=UTC)), False, None, 0),
    ],
)
def test_an_error_sets_the_time_of_the_retry(
    error: Exception, *, permanent: bool, delay: int | None, run_at: int | None
) -> None:
    verdict = verdict_on_error(error)

    assert (permanent, delay, run_at) == (verdict.permanent, verdict.delay, verdict.run_at)


class Unreadable(Exception):
    """An exception whose attributes and text raise `error`."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @property
    def kind(self) -> str:
        raise self.error

    @property
    def retry_at(self) -> str:
        raise self.error

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_an_error_without_readable_text_is_an_ordinary_error(error: BaseException) -> None:
    verdict = verdict_on_error(Unreadable(error))

    assert not verdict.permanent
    assert f"(no message: its __str__ raised {type(error).__name__})" == verdict.error.message


class Undescribable(Exception):
    @property
    def __traceback__(self) -> None:  # type: ignore[override]
        raise SystemExit(1)


def test_an_error_that_cannot_be_described_is_an_ordinary_error() -> None:
    verdict = verdict_on_error(Undescribable())

    assert (False, "Undescribable") == (verdict.permanent, verdict.error.type.rpartition(".")[2])
    assert "(no message: describing it raised SystemExit)" == verdict.error.message


class Text(str):
    """Text of a class that a storage cannot encode."""

    __slots__ = ()

    def replace(self, *_: object, **__: object) -> str:
        raise ValueError

    def __str__(self) -> str:
        return self


def test_the_text_of_an_error_becomes_plain_text() -> None:
    class Worded(Exception):
        def __str__(self) -> str:
            return Text("no")

    message = verdict_on_error(Worded()).error.message

    assert ("no", str) == (message, type(message))


def test_a_group_lists_its_errors() -> None:
    group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    assert "ValueError: a" in verdict_on_error(group).error.message


def test_groups_in_groups_are_listed_to_a_limit() -> None:
    group: Exception = ValueError("deep")
    for number in range(5000):
        group = ExceptionGroup(f"group {number}", [KeyError(number), group])

    message = verdict_on_error(group).error.message

    assert message.startswith("group 4999 (2 sub-exceptions)\n- KeyError: 4999\n- ExceptionGroup: group 4998")
    assert "deep" not in message


def test_a_wide_group_is_listed_to_a_limit() -> None:
    group = ExceptionGroup("wide", [ValueError(number) for number in range(100_000)])

    assert len(verdict_on_error(group).error.message) < 20_000


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
    """The frames of the error hold the objects that fill the memory.

    While the memory is full, the thread could not store the error and would end without a verdict on its run.
    If objects outside the frames still fill the memory, the verdict is OUT_OF_MEMORY.
    """
    with pytest.raises(FullMemory) as caught:
        fill_memory(references)

    verdict = verdict_on_error(caught.value)

    assert (verdict.error.message, verdict.permanent) == (message, False)
