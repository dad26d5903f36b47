"""The defaults of results and events: storages leave a field out if it does not apply.

The oracle of the conformance kit makes the same values, so the kit cannot see a wrong default.
"""

from __future__ import annotations

import msgspec

from dibs.model.events import LogEvent
from dibs.model.results import Counts, PruneResult, SettleResult


def test_the_counts_of_an_unknown_queue_are_zero() -> None:
    assert {0} == set(msgspec.structs.asdict(Counts()).values())


def test_a_prune_that_removed_nothing_ends() -> None:
    assert {"outcomes": 0, "request_keys": 0, "events": 0, "more": False} == msgspec.structs.asdict(
        PruneResult()
    )


def test_a_settlement_without_a_handed_off_job_has_no_reason_and_revision_0() -> None:
    assert ("", 0) == msgspec.structs.astuple(SettleResult("done"))[1:]


def test_an_event_of_a_queue_has_only_kind_id_and_time() -> None:
    given = {"kind": "paused", "id": "", "at": 7}
    fields = msgspec.structs.asdict(LogEvent(**given))  # type: ignore[arg-type]

    assert {0, None, ""} >= {value for name, value in fields.items() if name not in given}
