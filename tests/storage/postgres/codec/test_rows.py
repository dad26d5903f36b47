"""Values decoded from rows."""

from __future__ import annotations

from dibs.model.job import Error, Origin
from dibs.storage.postgres.codec.rows import decode_origin

ORIGIN = Origin(
    queue="q", id="a", revision=5, fence=6, attempts=1, retries=2, stalls=3, timeouts=4, enqueued_at=7,
    error=Error(type="E"), run_at=8,
)  # fmt: skip


def test_an_origin_without_attributes_is_read() -> None:
    assert decode_origin('["q", "a", 5, 6, 1, 2, 3, 4, 7, ["E"], 8, null]') == ORIGIN


def test_attributes_keep_their_text() -> None:
    origin = decode_origin('["q", "a", 5, 6, 1, 2, 3, 4, 7, ["E"], 8, {"n": 1.50}]')

    assert (origin.run_at, origin.attributes) == (8, {"n": b"1.50"})
