"""The law about the progress of ended runs: a kept outcome has the last one that its run reported."""

from __future__ import annotations

from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory


class LastProgressKept(Law):
    name = "the last progress outlives the end"
    section = "3, amend, report, retry_failed, forget"
    sentence = "A kept outcome of any kind has the last progress that its run reported."

    def begin(self) -> None:
        #: The last progress of each run that reported, by queue, id and fence.
        self.reported: dict[tuple[str, str, int], bytes] = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "report" and call.answer == "reported" and call.args["progress"] is not None:
            self.reported[call.queue, call.args["id"], call.args["fence"]] = call.args["progress"]

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, _ in history.seen:
            outcome = slot.outcome
            if outcome is not None and (call.queue, id, outcome.fence) in self.reported:
                last = self.reported[call.queue, id, outcome.fence]
                self.check(
                    outcome.progress == last,
                    "the outcome of {!r} has the progress {!r}; its run reported {!r} last",
                    id,
                    outcome.progress,
                    last,
                )
