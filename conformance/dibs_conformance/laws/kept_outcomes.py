"""The laws about what a kept outcome has of its job: the attributes, and the last progress of its run."""

from __future__ import annotations

from collections.abc import Mapping

from dibs.model.job import Outcome
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory


class AttributesKept(Law):
    name = "attributes outlive the end"
    section = "3, Retention"
    sentence = (
        "A kept outcome of any kind has the attributes of its job, with the patches since. A patch of a live "
        "job leaves the outcome beside it unchanged. retry_failed brings them back."
    )

    def __init__(self) -> None:
        super().__init__()
        self.retried: dict[str, Mapping[str, bytes]] = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        self.retried = {}
        if call.verb == "retry_failed":
            for id, answer in zip(call.args["ids"], call.answer, strict=True):
                kept = history.history_of(call.queue, id).kept
                if answer == "queued" and kept is not None:
                    self.retried[id] = kept.attributes

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, observed in history.seen:
            outcome, kept = slot.outcome, observed.kept
            if outcome is not None and kept is not None and outcome.fence == kept.fence:
                found = attributes_of(outcome)
                self.check(
                    found == kept.attributes,
                    "the outcome of {!r} has {}; expected {}",
                    id,
                    found,
                    kept.attributes,
                )
        for id, attributes in self.retried.items():
            job = call.slots[id].current if call.slots else None
            if job is not None:
                found = job.data.attributes
                self.check(found == attributes, "{!r} came back with {}; expected {}", id, found, attributes)


def attributes_of(outcome: Outcome) -> Mapping[str, bytes]:
    return outcome.attributes if outcome.data is None else outcome.data.attributes


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
