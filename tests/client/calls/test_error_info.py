"""The stored form of exceptions."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest

from dibs.client.calls.failure import MAX_DEPTH, error_from_exception
from dibs.client.task import TaskDecorator
from dibs.model.error_text import _error_size
from dibs.model.job import Error
from dibs.model.limits import LIMITS


def caught(raising: Callable[[], object]) -> Error:
    try:
        raising()
    except BaseException as error:  # noqa: BLE001 - the test is about any exception
        return error_from_exception(error)
    raise AssertionError("it did not raise")


def deep(levels: int) -> None:
    try:
        deep(levels - 1) if levels else int("no number")
    except ValueError as error:
        raise ValueError(levels) from error


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raise_mute() -> None:
    raise Mute


def raise_group() -> None:
    raise ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [KeyError("b")])])


def raise_loop() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def raise_from_none() -> None:
    try:
        int("hidden")
    except ValueError:
        raise KeyError("shown") from None


def raise_nasty() -> None:
    raise ValueError("a\0b \ud800" + "x" * 40_000)


def test_type_message_traceback_and_cause_are_kept() -> None:
    error = caught(lambda: deep(0))

    assert (error.type, error.message) == ("ValueError", "0")
    assert "in deep" in error.traceback
    assert error.cause is not None
    assert error.cause.message.startswith("invalid literal")


def test_our_own_errors_carry_their_module() -> None:
    assert caught(raise_mute).type == f"{__name__}.Mute"


def boom(*_: object) -> Any:
    raise ValueError


def frames(*makers: Any) -> TracebackType:
    """Return a traceback with frames of the functions `makers`, in this order."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - only its traceback counts
        TaskDecorator(boom)(boom)
    made: dict[str, TracebackType] = {}
    trace: TracebackType | None = caught.tb
    while trace is not None:
        made[trace.tb_frame.f_code.co_name] = trace
        trace = trace.tb_next
    chosen = [made[name] for name in makers]
    for one, following in zip(chosen, [*chosen[1:], None], strict=True):
        one.tb_next = following
    return chosen[0]


def test_the_traceback_begins_where_our_code_ends() -> None:
    """The frames of the worker above the handler do not help to find the failure."""
    stored = error_from_exception(ValueError().with_traceback(frames("__call__", "boom")))

    assert stored.traceback.splitlines()[0].endswith("in boom")


def test_what_is_all_ours_is_told_whole() -> None:
    stored = error_from_exception(ValueError().with_traceback(frames("__call__")))

    assert "task.py" in stored.traceback


def test_a_chain_of_causes_ends() -> None:
    cause: Error | None = caught(lambda: deep(50))
    length = 0
    while cause is not None:
        cause, length = cause.cause, length + 1

    assert length <= MAX_DEPTH
    assert caught(raise_loop).cause is not None


def test_a_context_that_was_hidden_stays_hidden() -> None:
    assert caught(raise_from_none).cause is None


def test_a_group_names_its_members() -> None:
    assert "- ValueError: a" in caught(raise_group).message
    assert "KeyError: 'b'" in caught(raise_group).message


def test_a_message_that_cannot_be_read_hides_nothing() -> None:
    assert caught(raise_mute).message == "(no message: its __str__ raised RuntimeError)"


def test_the_text_is_cut_to_what_may_be_stored() -> None:
    """Contract 4: the error text is cut to 16 KiB, with a mark."""
    error = caught(raise_nasty)

    assert _error_size(error) <= LIMITS.error
    assert "cut by dibs" in error.message
    assert "\0" not in error.message
    assert error.message.encode()
