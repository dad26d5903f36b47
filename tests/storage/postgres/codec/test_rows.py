"""Values decoded from rows, also from rows that an earlier version of dibs has stored."""

from __future__ import annotations

from dibs.model.job import Error, Origin
from dibs.storage.postgres.codec.rows import decode_origin

OLD = Origin(
    queue="q", id="a", revision=5, fence=6, attempts=1, retries=2, stalls=3, timeouts=4, enqueued_at=7,
    error=Error(type="E"),
)  # fmt: skip


def test_an_origin_of_an_earlier_version_is_read() -> None:
    """The stored array has neither run_at nor attributes, and its error has no `kind`."""
    assert decode_origin('["q", "a", 5, 6, 1, 2, 3, 4, 7, ["E", "", "", null]]') == OLD


def test_an_origin_without_attributes_is_read() -> None:
    assert decode_origin('["q", "a", 5, 6, 1, 2, 3, 4, 7, ["E"], 0, null]') == OLD


def test_attributes_keep_their_text() -> None:
    origin = decode_origin('["q", "a", 5, 6, 1, 2, 3, 4, 7, ["E"], 8, {"n": 1.50}]')

    assert (origin.run_at, origin.attributes) == (8, {"n": b"1.50"})
