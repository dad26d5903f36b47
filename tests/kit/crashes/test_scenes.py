"""The check of a history with a fault."""

from __future__ import annotations

from math import inf

import pytest

from dibs_conformance.crashes import scenes
from dibs_conformance.crashes.scenes import SCENES, FaultHistory, thread_survivor
from dibs_conformance.target import Locations
from dibs_conformance.verbs.actions import START


@pytest.mark.parametrize("answered", [True, False])
def test_a_log_entry_may_appear_late_only_for_an_unanswered_call(
    monkeypatch: pytest.MonkeyPatch, *, answered: bool
) -> None:
    """On Postgres the log entry of a cancelled settlement once appeared just after its effect."""
    monkeypatch.setattr(scenes, "LATE_ENTRIES", 0.0)
    locations = Locations("memory:")
    with thread_survivor(locations, locations.new()) as survivor:
        history = FaultHistory(survivor, "q", START)
        [call] = survivor.run(history.run_setup(SCENES["fail"]), 10) or []
        if not answered:
            call.completion, call.answer, call.returned = "unknown", None, inf
        history.add([call])
        history.finish()
        last = history.rounds[-1].snapshot
        assert last is not None
        assert last.events
        last.events = []

        assert answered == (history.check("law") is not None)
    locations.remove_all()
