"""Rules about several ids, queues and leases: numbers, request keys, ends, leases, settings and limits.

What a single id shows, the search for an order explains (history/linearize.py). A rule checks one sentence on
a whole history and counts how often it applied. It reports only certain violations. A call without an answer
may have taken effect at any time since it was sent, or never, and every rule allows for both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise, zip_longest
from math import inf
from typing import ClassVar

import msgspec
from attrs import define, field, frozen

from dibs.model.job import FAIL_SUFFIX
from dibs.model.limits import START_COST
from dibs.model.requests import StartRate
from dibs_conformance.history.by_id import (
    IdSteps,
    Key,
    RecordedHistory,
    RecordedRun,
    SettingsTimeline,
    patch_of,
)
from dibs_conformance.steps import UNKNOWN, RecordedSlot, RecordedStep


@frozen
class Violation:
    """A contradiction between steps that no correct storage can produce."""

    rule: str
    #: The queue and the id. The id is empty if the violation is about a queue or a lease.
    key: Key
    why: str
    #: The contradicting steps.
    steps: tuple[RecordedStep, ...] = ()


class HistoryRule:
    """One rule. `met` counts how often it applied to the history."""

    name: ClassVar[str]
    title: ClassVar[str]
    section: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self) -> None:
        self.met = 0

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        """Yield every violation."""
        raise NotImplementedError

    def violation(self, key: Key, why: str, *steps: RecordedStep) -> Violation:
        return Violation(self.name, key, why, steps)


def by_answer(steps: Iterable[RecordedStep]) -> list[RecordedStep]:
    """Return the answered steps, ordered by the time of their answer."""
    return sorted((step for step in steps if step.ended is not None), key=ended)


def ended(step: RecordedStep) -> int:
    """Return the time of the answer. The step must have one."""
    assert step.ended is not None  # noqa: S101 - callers pass answered steps only
    return step.ended


def began(step: RecordedStep) -> int:
    return step.began


def newest_before(
    steps: Iterable[RecordedStep], known: Iterable[RecordedStep], number: Callable[[RecordedStep], int]
) -> Iterator[tuple[RecordedStep, RecordedStep | None]]:
    """Yield the steps in the order they were sent, each with a known step that was answered before.

    That step is the one with the highest number; None if no known step was answered before.
    """
    answered, index, newest = by_answer(known), 0, None
    for step in sorted(steps, key=began):
        while index < len(answered) and ended(answered[index]) < step.began:
            if newest is None or number(answered[index]) > number(newest):
                newest = answered[index]
            index += 1
        yield step, newest


def fence(step: RecordedStep) -> int:
    return step.fence


def before(earlier: RecordedStep, later: RecordedStep) -> bool:
    """Return whether `earlier` was answered before `later` was sent."""
    return earlier.ended is not None and earlier.ended < later.began


class DrainedRule(HistoryRule):
    name = "R2"
    title = "everything ends"
    section = "4.3"
    sentence = "After a healthy worker has drained the queues, no job is waiting, active or blocked."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values() if history.drained is not None else ():
            for step in id_steps.reads:
                if step.read is not None and history.drained is not None and step.began > history.drained:
                    self.met += 1
                    if step.read.current or step.read.successor:
                        yield self.violation(id_steps.key, "the job is still live after the drain", step)


class FencesRule(HistoryRule):
    name = "R4"
    title = "fences grow"
    section = "1, Numbers"
    sentence = (
        "The fences of an id are distinct, at least the storage's time in µs, and grow from claim to claim."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            self.met += len(id_steps.claims)
            yield from self._check_distinct(id_steps)
            yield from self._check_growth(id_steps)
            for claim in id_steps.claims:
                if claim.fence < claim.run_began * 1000:
                    yield self.violation(
                        id_steps.key,
                        f"fence {claim.fence} is below the storage's time, {claim.run_began} ms",
                        claim,
                    )

    def _check_distinct(self, id_steps: IdSteps) -> Iterator[Violation]:
        for a, b in pairwise(id_steps.runs):
            if a.fence == b.fence:
                yield self.violation(id_steps.key, f"two claims got the fence {a.fence}", a.claim, b.claim)

    def _check_growth(self, id_steps: IdSteps) -> Iterator[Violation]:
        for claim, newest in newest_before(id_steps.claims, id_steps.claims, fence):
            if newest is not None and claim.fence < newest.fence:
                why = f"fence {claim.fence} was given after {newest.fence}"
                yield self.violation(id_steps.key, why, newest, claim)


class RevisionsRule(HistoryRule):
    name = "R11"
    title = "revisions grow"
    section = "1, Numbers"
    sentence = "Each enqueue gets a higher revision than all enqueues of its queue answered before."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, ids in history.by_queue.items():
            accepted = [step for id_steps in ids for step in id_steps.accepted]
            for step, newest in newest_before(accepted, accepted, revision):
                self.met += newest is not None
                if newest is not None and step.revision <= newest.revision:
                    why = f"revision {step.revision} was given after {newest.revision}"
                    yield self.violation((queue, step.id), why, newest, step)
            for id_steps in ids:
                yield from self._check_distinct(id_steps)

    def _check_distinct(self, id_steps: IdSteps) -> Iterator[Violation]:
        for a, b in pairwise(sorted(id_steps.accepted, key=revision)):
            if a.revision == b.revision:
                yield self.violation(id_steps.key, f"two enqueues got the revision {a.revision}", a, b)


def revision(step: RecordedStep) -> int:
    return step.revision


class RequestKeyRule(HistoryRule):
    name = "R9"
    title = "a request_key acts once"
    section = "3, enqueue"
    sentence = "Among enqueues with the same unexpired key, one takes effect; the others repeat its answer."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, ids in history.by_queue.items():
            keyed: dict[str, list[RecordedStep]] = defaultdict(list)
            for id_steps in ids:
                for step in id_steps.enqueues:
                    if step.key and step.status not in (UNKNOWN, "refused"):
                        keyed[step.key].append(step)
            for key, steps in keyed.items():
                yield from self._check_key(queue, key, steps)

    def _check_key(self, queue: str, key: str, steps: list[RecordedStep]) -> Iterator[Violation]:
        self.met += len(steps) > 1
        if len({(step.status, step.first, step.revision) for step in steps}) > 1:
            yield self.violation(
                (queue, steps[0].id), f"enqueues with the key {key!r} took effect twice", *steps
            )


class EffectsRule(HistoryRule):
    name = "R19"
    title = "effects go by fence"
    section = "4.2"
    sentence = "A resource that checks fences never accepts an older fence after a newer one."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        taken: dict[tuple[str, str], list[RecordedStep]] = defaultdict(list)
        for step in history.effects:
            if step.status == "taken" and step.ended is not None:
                taken[step.queue, step.id].append(step)
        for key, steps in taken.items():
            for step, newest in newest_before(steps, steps, fence):
                self.met += newest is not None
                if newest is not None and step.fence < newest.fence:
                    yield self.violation(
                        key, f"fence {step.fence} took effect after {newest.fence}", newest, step
                    )


class LeasesRule(HistoryRule):
    name = "R17"
    title = "leases hold"
    section = "3, Leases"
    sentence = "A renewal never shortens or revives a lease; a lease is lost early only if it was dropped."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for lease, steps in history.leases.items():
            queues: dict[str, list[RecordedStep]] = defaultdict(list)
            for step in steps:
                queues[step.queue].append(step)
            # The grant of a lease on several queues returns only the earliest of their ends.
            exact = len({step.queue for step in steps if step.op == "grant"}) < 2
            for queue, answered in queues.items():
                yield from self._check_queue(queue, lease, answered, exact=exact)
        yield from self._check_claims(history)

    def _check_queue(
        self, queue: str, lease: str, steps: list[RecordedStep], *, exact: bool
    ) -> Iterator[Violation]:
        """Compare each renewal with the latest end announced before it was sent."""
        answered, index = by_answer(step for step in steps if step.until), 0
        latest: RecordedStep | None = None
        dropped = min((step.began for step in steps if step.op == "drop"), default=inf)
        dead = min((ended(s) for s in steps if s.status == "lost"), default=inf)
        for step, alone in renewals(steps):
            while index < len(answered) and ended(answered[index]) < step.began:
                latest = answered[index] if latest is None or answered[index].until > latest.until else latest
                index += 1
            self.met += 1
            if step.status == "alive" and dead < step.began:
                yield self.violation(
                    (queue, ""), f"the lease {lease[:8]} was lost and became alive again", step
                )
            elif step.status == "alive" and latest is not None:
                is_exact = alone and (exact or latest.op != "grant")
                yield from self._check_alive(queue, latest, step, alone=is_exact)
            elif step.status == "lost" and latest is not None and step.now < latest.until:
                yield from self._check_lost(queue, latest, step, dropped)

    def _check_alive(
        self, queue: str, latest: RecordedStep, step: RecordedStep, *, alone: bool
    ) -> Iterator[Violation]:
        if step.until < latest.until:
            why = f"a renewal shortened the lease from {latest.until} to {step.until}"
            yield self.violation((queue, ""), why, latest, step)
        elif alone and step.now >= latest.until:
            why = f"the lease ended at {latest.until} and was renewed at {step.now}"
            yield self.violation((queue, ""), why, latest, step)

    def _check_lost(
        self, queue: str, latest: RecordedStep, step: RecordedStep, dropped: float
    ) -> Iterator[Violation]:
        if dropped > ended(step):
            why = f"the lease was lost at {step.now}, before its end at {latest.until}"
            yield self.violation((queue, ""), why, latest, step)

    def _check_claims(self, history: RecordedHistory) -> Iterator[Violation]:
        """Yield claims under a lease that had been answered lost."""
        dead: dict[tuple[str, str], RecordedStep] = {}
        for lease, steps in history.leases.items():
            for step in by_answer(step for step in steps if step.status in ("lost", "dropped")):
                dead.setdefault((step.queue, lease), step)
        for id_steps in history.ids.values() if dead else ():
            for claim in id_steps.claims:
                death = dead.get((claim.queue, claim.lease))
                if death is not None and before(death, claim):
                    why = f"the job was claimed under the dead lease {claim.lease[:8]}"
                    yield self.violation(id_steps.key, why, death, claim)


def renewals(steps: list[RecordedStep]) -> Iterator[tuple[RecordedStep, bool]]:
    """Yield (renewal, alone) for the answered renewals in the order they were sent.

    `alone` is True if no other renewal overlapped this one. Without overlap, the latest
    announced end is the end of the lease. With overlap, another renewal may have changed it.
    """
    sent = sorted((step for step in steps if step.op == "renew"), key=began)
    latest = -inf
    for step, following in zip_longest(sent, sent[1:]):
        if step.ended is None:
            latest = inf
            continue
        yield step, latest < step.began and (following is None or following.began > step.ended)
        latest = max(latest, step.ended)


class CountsRule(HistoryRule):
    name = "R13"
    title = "counts are true at rest"
    section = "3, Queues as a whole"
    sentence = "After a drain, the counts of a queue equal the states found by reading all its ids."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        drained = history.drained
        for step in history.counts if drained is not None else ():
            if (
                step.counts is None
                or drained is None
                or step.began <= drained
                or step.counts.get("approximate")
            ):
                continue
            self.met += 1
            found = count_states_read(history, step.queue, drained)
            wrong = {name: n for name, n in found.items() if step.counts.get(name, 0) != n}
            if wrong:
                known = ", ".join(
                    f"{step.counts.get(name, 0)} {name}, but {n} were read" for name, n in wrong.items()
                )
                yield self.violation((step.queue, ""), f"counted {known}", step)


def count_states_read(history: RecordedHistory, queue: str, since: int) -> Counter[str]:
    """Return the number of ids read in each live state."""
    found = Counter(waiting=0, active=0, blocked=0)
    for id_steps in history.by_queue.get(queue, ()):
        late = [step.read for step in id_steps.reads if step.began > since and step.read is not None]
        if late:
            found.update(states_of(late[-1]))
    return found


def states_of(read: RecordedSlot) -> Iterator[str]:
    if read.current is not None:
        yield "active" if read.fence else "waiting"
    if read.successor is not None:
        yield "blocked"


#: Later than the answer of any call.
LATEST = 2**62
#: Queue, id and fence of the failed run.
Origin = tuple[str, str, int]


class FailuresHandledRule(HistoryRule):
    name = "R14"
    title = "failures are handled"
    section = "4.5"
    sentence = (
        "Each failure while fail_handler certainly was true has exactly one fail job with exactly its payload"
        ", claimed before a drain ends; each fail job belongs to a failure while it may have been true."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        failed, possible = find_handled_failures(history)
        jobs: dict[Origin, dict[str, RecordedStep]] = defaultdict(dict)
        for id_steps in history.ids.values():
            for claim in id_steps.claims:
                if claim.origin is not None:
                    jobs[claim.origin].setdefault(claim.id, claim)
        self.met += len(failed)
        for origin, claims in jobs.items():
            yield from self._check_fail_jobs(history, origin, claims, possible)
        for origin, step in failed.items() if history.drained is not None else ():
            if origin not in jobs:
                yield self.violation(origin[:2], f"the failure of fence {origin[2]} was never handled", step)

    def _check_fail_jobs(
        self, history: RecordedHistory, origin: Origin, claims: dict[str, RecordedStep], possible: set[Origin]
    ) -> Iterator[Violation]:
        if len(claims) > 1:
            why = f"the failure of fence {origin[2]} has {len(claims)} fail jobs"
            yield self.violation(origin[:2], why, *claims.values())
        [claim, *_] = claims.values()
        failed = [run.claim for run in runs_of(history, origin) if run.fence == origin[2]]
        if failed and claim.payload != failed[0].payload:
            why = f"the fail job of fence {origin[2]} carries {claim.payload!r}, not {failed[0].payload!r}"
            yield self.violation(origin[:2], why, failed[0], claim)
        if origin not in possible and not history.partial:
            yield self.violation(origin[:2], f"a fail job names fence {origin[2]}, which did not fail", claim)


def runs_of(history: RecordedHistory, origin: Origin) -> list[RecordedRun]:
    id_steps = history.ids.get(origin[:2])
    return id_steps.runs if id_steps is not None else []


def find_handled_failures(history: RecordedHistory) -> tuple[dict[Origin, RecordedStep], set[Origin]]:
    """Return the acknowledged failures that certainly were handled, and all that may have been.

    A repeated settlement shows the end long after it happened, so each of them must be certain.
    """
    failed: dict[Origin, RecordedStep] = {}
    possible: set[Origin] = set()
    uncertain: set[Origin] = set()
    for (queue, id), id_steps in history.ids.items():
        if queue.endswith(FAIL_SUFFIX):
            continue
        for step in (*id_steps.settles, *id_steps.others_of("finish")):
            if step.how != "fail" or step.status not in ("done", "unknown"):
                continue
            runs = [r for r in id_steps.runs if r.covers(step.revision)] if step.op == "finish" else ()
            origins = {(queue, id, run.fence) for run in runs} or {(queue, id, step.fence)}
            handler = possible_handlers(history, queue, step)
            if "true" in handler:
                possible |= origins
            if handler != {"true"} or step.op == "finish":
                uncertain |= origins
            elif step.status == "done":
                failed.setdefault((queue, id, step.fence), step)
    return {origin: step for origin, step in failed.items() if origin not in uncertain}, possible


def possible_handlers(history: RecordedHistory, queue: str, step: RecordedStep) -> set[str]:
    """Return the values, as JSON texts, that `fail_handler` may have had when the step took effect."""
    settings = history.settings.get(queue)
    if settings is None:
        return {"false"}
    return settings.possible("fail_handler", step.began, LATEST if step.ended is None else step.ended)


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
    """Group the runs by the key of their job, without those of jobs without a key."""
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
    section = "2, Keys and limits"
    sentence = "While per_key certainly held, no claim made more runs of one key active under leases."
    setting, groups = "per_key", runs_by_key


class RateRule(HistoryRule):
    name = "R31"
    title = "a rate is exact"
    section = "2, Keys and limits"
    sentence = (
        "While a rate or a key_rate certainly held, each stretch of w µs has at most burst + w div interval "
        "starts, and those that costs below 1,000 may have given back."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, timeline in history.settings.items():
            ids = history.by_queue.get(queue, [])
            refunds = [step for id_steps in ids for step in id_steps.settles if step.cost < START_COST]
            if timeline.values("rate") - {"null"}:
                runs = [run for id_steps in ids for run in id_steps.runs]
                yield from self._check_starts(queue, timeline, "rate", runs, refunds)
            if timeline.values("key_rate") - {"null"}:
                for keyed in runs_by_key(ids):
                    yield from self._check_starts(queue, timeline, "key_rate", keyed, refunds)

    def _check_starts(
        self,
        queue: str,
        timeline: SettingsTimeline,
        setting: str,
        runs: list[RecordedRun],
        refunds: list[RecordedStep],
    ) -> Iterator[Violation]:
        """Yield claims that a rate forbids. Starts before the rate certainly had its value do not count.

        A settlement may give a part of a start back as soon as it is called.
        """
        stretch, fences = Stretch(), {run.fence for run in runs}
        refunds = [step for step in refunds if step.fence in fences]
        for claim in sorted((run.claim for run in runs), key=lambda claim: (claim.run_began, ended(claim))):
            text = timeline.certain(setting, *stretch.interval_with(claim))
            if text in (None, "null"):
                stretch = Stretch()
                text = timeline.certain(setting, *stretch.interval_with(claim))
            if text is None or text == "null":
                continue
            rate = msgspec.json.decode(text, type=StartRate)
            self.met += bool(stretch.claims)
            given_back = sum(START_COST - step.cost for step in refunds if step.began < ended(claim))
            if not stretch.allows(rate, claim, given_back):
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

    def allows(self, rate: StartRate, claim: RecordedStep, given_back: int) -> bool:
        """Return whether a claim may start a run, if costs have given back some thousandths of a start."""
        more = (rate.burst - 1) * START_COST + given_back
        return self.clock <= claim.run_began * 1000 + more * interval_of(rate) // START_COST

    def add(self, rate: StartRate, claim: RecordedStep) -> None:
        self.clock = max(self.clock, claim.run_began * 1000) + interval_of(rate)
        self.claims.append(claim)


def interval_of(rate: StartRate) -> int:
    """Return the interval of a rate in µs, rounded up."""
    return (rate.per * 1000 + rate.starts - 1) // rate.starts


RULES = (
    *(DrainedRule, FencesRule, RevisionsRule, RequestKeyRule, EffectsRule, LeasesRule, CountsRule),
    *(FailuresHandledRule, PauseRule, SettingsRule, MaxActiveRule, PerKeyRule, RateRule),
)
#: The rules of the capability `limits`.
OF_LIMITS = (PerKeyRule, RateRule)
