"""Rules about the settings of a queue: they are kept, and claims obey them: pauses, limits and rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import ClassVar

import msgspec
from attrs import define, field

from dibs.model.requests import StartRate
from dibs_conformance.history.by_id import IdSteps, RecordedHistory, RecordedRun, SettingsTimeline, patch_of
from dibs_conformance.history.rules.rule import HistoryRule, Violation, ended
from dibs_conformance.steps import RecordedStep


class PauseRule(HistoryRule):
    name = "R24"
    title = "a pause holds"
    section = "3, Queues as a whole"
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
    section = "3, Queues as a whole"
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


class RunsAtOnceRule(HistoryRule):
    """A rule about a setting that limits the runs that are active at once, in one sweep over their claims."""

    setting: ClassVar[str]
    groups: ClassVar[Callable[[Iterable[IdSteps]], Iterable[list[RecordedRun]]]]

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, timeline in history.settings.items():
            limits = {int(value) for value in timeline.values(self.setting) if value != "null"}
            for runs in type(self).groups(history.by_queue.get(queue, [])) if limits else ():
                yield from self._check_runs(queue, timeline, runs, min(limits))

    def _check_runs(
        self, queue: str, timeline: SettingsTimeline, runs: list[RecordedRun], smallest: int
    ) -> Iterator[Violation]:
        active: list[tuple[float, int, RecordedStep]] = []
        for number, run in enumerate(sorted(runs, key=lambda run: ended(run.claim))):
            time, close = ended(run.claim), run.earliest_close()
            self.met += timeline.certain(self.setting, run.claim.began, time) not in (None, "null")
            while active and active[0][0] <= time:
                heappop(active)
            if close > time and not run.handed_off:
                # The jobs of one call may share a fence, and steps have no order.
                heappush(active, (close, number, run.claim))
                if len(active) > smallest:
                    yield from self._check_moment(queue, timeline, [claim for _, _, claim in active], time)

    def _check_moment(
        self, queue: str, timeline: SettingsTimeline, claims: list[RecordedStep], time: int
    ) -> Iterator[Violation]:
        """Check runs that are active at once: the last of their claims took effect while the others ran."""
        latest = max(claims, key=lambda claim: claim.began)
        limit = timeline.certain(self.setting, latest.began, time)
        if limit not in (None, "null") and len(claims) > int(limit or 0):
            of_key = f" of the key {latest.job_key!r}" if self.setting == "per_key" else ""
            why = f"{len(claims)} runs{of_key} were active at once, and {self.setting} was {limit}"
            yield self.violation((queue, latest.id), why, *claims)


def all_runs(ids: Iterable[IdSteps]) -> list[list[RecordedRun]]:
    return [[run for id_steps in ids for run in id_steps.runs]]


def runs_by_key(ids: Iterable[IdSteps]) -> Iterable[list[RecordedRun]]:
    """Return the runs of each key."""
    keys: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in all_runs(ids)[0]:
        if run.claim.job_key:
            keys[run.claim.job_key].append(run)
    return keys.values()


class MaxActiveRule(RunsAtOnceRule):
    name = "R23"
    title = "max_active is exact"
    section = "3, claim"
    sentence = "While max_active certainly held, no claim made more jobs active under leases."
    setting, groups = "max_active", all_runs


class PerKeyRule(RunsAtOnceRule):
    name = "R30"
    title = "per_key is exact"
    section = "2"
    sentence = "While per_key certainly held, no claim made more runs of one key active under leases."
    setting, groups = "per_key", runs_by_key


class RateRule(HistoryRule):
    name = "R31"
    title = "a rate is exact"
    section = "2"
    sentence = (
        "While a rate or a key_rate certainly held, each stretch of w µs has at most burst + w div interval "
        "starts."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, timeline in history.settings.items():
            runs = [run for id_steps in history.by_queue.get(queue, ()) for run in id_steps.runs]
            if timeline.values("rate") - {"null"}:
                yield from self._check_starts(queue, timeline, "rate", [run.claim for run in runs])
            if timeline.values("key_rate") - {"null"}:
                for keyed in runs_by_key(history.by_queue.get(queue, [])):
                    yield from self._check_starts(queue, timeline, "key_rate", [run.claim for run in keyed])

    def _check_starts(
        self, queue: str, timeline: SettingsTimeline, setting: str, claims: list[RecordedStep]
    ) -> Iterator[Violation]:
        """Yield claims that a rate forbids. Starts before the rate certainly had its value do not count."""
        stretch = Stretch()
        for claim in sorted(claims, key=lambda claim: (claim.run_began, ended(claim))):
            text = timeline.certain(setting, *stretch.interval_with(claim))
            if text in (None, "null"):
                stretch = Stretch()
                text = timeline.certain(setting, *stretch.interval_with(claim))
            if text is None or text == "null":
                continue
            rate = msgspec.json.decode(text, type=StartRate)
            self.met += bool(stretch.claims)
            if not stretch.allows(rate, claim):
                why = f"{len(stretch.claims) + 1} runs started too soon for the {setting} {text}"
                yield self.violation((queue, claim.id), why, *stretch.claims[-rate.burst :], claim)
            stretch.add(rate, claim)


@define
class Stretch:
    """The claims during which a rate certainly held, and the clock that they charge."""

    claims: list[RecordedStep] = field(factory=list)
    clock: int = 0

    def interval_with(self, claim: RecordedStep) -> tuple[int, int]:
        """Return the recorder's times of the first and the last of these claims, including `claim`."""
        steps = (*self.claims, claim)
        return min(step.began for step in steps), max(ended(step) for step in steps)

    def allows(self, rate: StartRate, claim: RecordedStep) -> bool:
        return self.clock <= claim.run_began * 1000 + (rate.burst - 1) * interval_of(rate)

    def add(self, rate: StartRate, claim: RecordedStep) -> None:
        self.clock = max(self.clock, claim.run_began * 1000) + interval_of(rate)
        self.claims.append(claim)


def interval_of(rate: StartRate) -> int:
    """Return the interval of a rate in µs, rounded up."""
    return (rate.per * 1000 + rate.starts - 1) // rate.starts


RULES = (PauseRule, SettingsRule, MaxActiveRule, PerKeyRule, RateRule)
#: The rules of the capability `limits`.
OF_LIMITS = (PerKeyRule, RateRule)
