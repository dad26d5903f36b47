"""Rules about the settings of a queue: they are kept, and claims obey them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from dibs_conformance.history.by_id import IdSteps, RecordedHistory
from dibs_conformance.history.rules.rule import HistoryRule, Violation, ended
from dibs_conformance.history.settings_timeline import SettingsTimeline, patch_of
from dibs_conformance.steps import RecordedStep


class MaxActiveRule(HistoryRule):
    name = "R23"
    title = "max_active is exact"
    section = "3, claim"
    sentence = "While max_active certainly held, no claim made more jobs active under leases."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, timeline in history.settings.items():
            limits = {int(value) for value in timeline.values("max_active") if value != "null"}
            if limits:
                yield from self._check_queue(queue, timeline, history.by_queue.get(queue, []), min(limits))

    def _check_queue(
        self, queue: str, timeline: SettingsTimeline, ids: list[IdSteps], smallest: int
    ) -> Iterator[Violation]:
        runs = sorted((run for id_steps in ids for run in id_steps.runs), key=lambda run: ended(run.claim))
        active: list[tuple[float, int, RecordedStep]] = []
        for run in runs:
            time, close = ended(run.claim), run.earliest_close()
            self.met += timeline.certain("max_active", run.claim.began, time) not in (None, "null")
            while active and active[0][0] <= time:
                heappop(active)
            if close > time and not run.handed_off:
                heappush(active, (close, run.fence, run.claim))
                if len(active) > smallest:
                    yield from self._check_moment(queue, timeline, [claim for _, _, claim in active], time)

    def _check_moment(
        self, queue: str, timeline: SettingsTimeline, claims: list[RecordedStep], time: int
    ) -> Iterator[Violation]:
        """Check jobs that are active at once: the last of their claims took effect while the others ran."""
        latest = max(claims, key=lambda claim: claim.began)
        limit = timeline.certain("max_active", latest.began, time)
        if limit not in (None, "null") and len(claims) > int(limit or 0):
            why = f"{len(claims)} jobs were active at once, and max_active was {limit}"
            yield self.violation((queue, latest.id), why, *claims)


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


RULES = (MaxActiveRule, PauseRule, SettingsRule)
