"""The stored text of an error: its limit, its cut and its escapes."""

from __future__ import annotations

import msgspec
import pytest

from dibs.model.error_text import CUT_MARK, to_storable_error
from dibs.model.job import Error

KIB = 1024


def test_an_error_within_16_kib_is_kept_as_it_is() -> None:
    error = Error(type="E", message="m" * 8000, traceback="t" * (16 * KIB - 8001), cause=None)

    assert error == to_storable_error(error)


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_a_longer_error_is_cut_to_16_kib_with_a_mark_and_both_its_ends(letter: str) -> None:
    error = Error(type="E" * 600, message="begin" + letter * 20_000, traceback=letter * 20_000 + "end")
    cut = to_storable_error(error)
    size = sum(len(text.encode()) for text in (cut.type, cut.message, cut.traceback))

    assert 15 * KIB < size <= 16 * KIB
    assert CUT_MARK in cut.traceback
    assert cut.message.startswith("begin")
    assert cut.traceback.endswith("end")


def test_characters_that_a_text_column_cannot_keep_are_escaped() -> None:
    kept = to_storable_error(Error(type="E", message="a\0b", cause=Error(type="C", message="\ud800")))

    assert "a\\0b" == kept.message
    assert kept.cause is not None
    assert "\\ud800" == kept.cause.message


def test_a_chain_of_causes_without_end_is_cut() -> None:
    """Ten thousand causes of one letter fit in 16 KiB, but an encoder cannot recurse that deep."""
    error = Error(type="E")
    for _ in range(10_000):
        error = Error(type="E", cause=error)
    kept, length = to_storable_error(error), 0
    link: Error | None = kept
    while link is not None:
        link, length = link.cause, length + 1

    assert 1 < length <= 64
    assert kept == msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=Error)
