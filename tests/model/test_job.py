"""Fields of stored values that a record may leave out."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Struct

from dibs.model.job import ActiveRun, Job, JobData, Outcome, Successor


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

    assert left_out.pop("creates", True)
    assert counted == {name: found for name, found in left_out.items() if found}
