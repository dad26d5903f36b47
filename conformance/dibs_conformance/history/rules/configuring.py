"""Rules about the settings of a queue: they are kept, and claims obey them."""

from __future__ import annotations

from collections.abc import Iterator

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.rules.rule import HistoryRule, Violation, ended
from dibs_conformance.history.settings_timeline import patch_of
from dibs_conformance.steps import RecordedStep


class PauseRule(HistoryRule):
    name = "R24"
    title = "a pause holds"
    section = "3, configure"
    sentence = "A claim takes no job if the queue was certainly paused during the whole claim."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, timeline in history.settings.items():
            if "true" not in timeline.values("paused"):
                continue
            for claim in claims_of(history, queue):
                if claim.ended is not None and timeline.certain("paused", claim.began, claim.ended) == "true":
                    self.met += 1
                    if claim.status == "taken":
                        yield self.violation((queue, claim.id), "a paused queue handed out the job", claim)


def claims_of(history: RecordedHistory, queue: str) -> Iterator[RecordedStep]:
    yield from history.short_claims.get(queue, ())
    for id_steps in history.by_queue.get(queue, ()):
        yield from id_steps.claims


class SettingsRule(HistoryRule):
    name = "R25"
    title = "settings are kept"
    section = "3, configure"
    sentence = "A configure returns its patch, and for each other setting a value that it may still have."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, timeline in history.settings.items():
            for step in timeline.steps:
                for name, value in (step.settings or {}).items():
                    self.met += 1
                    patched = patch_of(step).get(name)
                    expected = {patched} if patched else timeline.possible(name, step.began, ended(step))
                    if value not in expected:
                        why = f"{name} is {value}; expected {' or '.join(sorted(expected))}"
                        writes = [other for other in timeline.steps if name in patch_of(other)]
                        yield self.violation((queue, ""), why, *writes, step)


RULES = (PauseRule, SettingsRule)
