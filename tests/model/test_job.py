"""Stored values that an earlier version of dibs has written are read, with defaults for later fields."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct

from dibs.model.job import ActiveRun, Error, Job, JobData, Origin, Outcome, Successor

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


@pytest.mark.parametrize(
    ("kind", "required", "counted"),
    [
        (Outcome, ["completed", 5, 3, 4, 7, None], {"enqueues": 1}),
        (Job, ["a", [], 7, 7, 1, 3, 4], {"enqueues": 1}),
        (Successor, [[], False, 7, None, None, False, 7, 2, 3, 4], {"enqueues": 1}),
        (ActiveRun, [5, "lease", "holder", 7], {}),
        (JobData, [], {}),
    ],
)
def test_a_field_that_is_left_out_is_empty_and_counts_one_enqueue(
    kind: type[Struct], required: list[object], counted: dict[str, int]
) -> None:
    value = msgspec.convert(required, kind)
    left_out = {name: getattr(value, name) for name in kind.__struct_fields__[len(required) :]}

    # A list of updates that was stored before update-only requests existed always creates a job.
    assert left_out.pop("creates", True)
    assert counted == {name: found for name, found in left_out.items() if found}
