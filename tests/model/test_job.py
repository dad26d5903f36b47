"""Stored values that an earlier version of dibs has written are read, with defaults for later fields."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct

from dibs.model.job import Error, Origin

ERROR = Error(type="E", message="no")
ORIGIN = Origin(
    queue="q", id="a", revision=5, fence=6, attempts=1, retries=2, stalls=3, timeouts=4, enqueued_at=7,
    error=ERROR,
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "added"), [(ERROR, 1), (ORIGIN, 2)], ids=["error without kind", "origin without time"]
)
def test_a_value_without_the_fields_that_were_added_is_read(value: Struct, added: int) -> None:
    """The file storage and the SQLite example keep values as arrays."""
    fields = msgspec.to_builtins(value)[:-added]

    assert msgspec.convert(fields, type(value)) == value
