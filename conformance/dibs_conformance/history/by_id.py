"""A history indexed for the rules: its steps by id, queue and lease, and the settings of each queue."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import TypeVar

from attrs import define, field

from dibs.model.requests import Settings
from dibs_conformance.steps import FOLLOWED, UNKNOWN, RecordedStep, without_superseded
from dibs_conformance.verbs.configure import setting_texts

#: The settings of a queue that was never configured, as JSON texts.
DEFAULTS = setting_texts(Settings())


class SettingsTimeline:
    """All configures of one queue."""

    def __init__(self, steps: Iterable[RecordedStep]) -> None:
        self.steps = [step for step in steps if step.status != "refused"]

    @cached_property
    def _by_setting(self) -> dict[str, SettingTimeline]:
        return {name: SettingTimeline(name, self.steps) for name in DEFAULTS}

    def possible(self, name: str, began: int, ended: int) -> set[str]:
        """Return the values, as JSON texts, that a setting may have had at some time of an interval."""
        return self._by_setting[name].possible(began, ended)

    def certain(self, name: str, began: int, ended: int) -> str | None:
        """Return the value that a setting certainly had during a whole interval, or None."""
        values = self.possible(name, began, ended)
        return values.pop() if len(values) == 1 else None

    def values(self, name: str) -> set[str]:
        """Return all values that were ever set."""
        return {value for _, _, value in self._by_setting[name].writes}


class SettingTimeline:
    """The writes of one setting, in the order of their answers."""

    def __init__(self, name: str, steps: Iterable[RecordedStep]) -> None:
        self._default = DEFAULTS[name]
        self.writes = sorted(
            (inf if step.ended is None else step.ended, step.began, patch[name])
            for step in steps
            if name in (patch := patch_of(step))
        )
        self._ends = [end for end, _, _ in self.writes]
        #: Element i is the latest time at which one of the first i + 1 writes was sent.
        self._latest_sent = [*accumulate((began for _, began, _ in self.writes), max)]
        #: Element i is the earliest time at which one of the writes from i on was sent.
        self._earliest_sent = [*accumulate((began for _, began, _ in reversed(self.writes)), min)][::-1]

    def possible(self, began: int, ended: int) -> set[str]:
        """Return the values that the setting may have had at some time from `began` to `ended`.

        A write no longer counts if another one was sent after its answer, and answered before `began`.
        """
        answered = bisect_left(self._ends, began)
        found = set() if answered else {self._default}
        first = bisect_left(self._ends, self._latest_sent[answered - 1]) if answered else 0
        for index in range(first, len(self.writes)):
            if self._earliest_sent[index] > ended:
                break
            if self.writes[index][1] <= ended:
                found.add(self.writes[index][2])
        return found


def patch_of(step: RecordedStep) -> dict[str, str]:
    """Return the patch of a configure. A history may have only `paused` and `max_active`."""
    if step.patch is not None:
        return step.patch
    fields = {"paused": step.paused, "max_active": step.max_active}
    return {name: str(value).lower() for name, value in fields.items() if value is not None}


Key = tuple[str, str]
KeyT = TypeVar("KeyT")

#: The outcome that each settle action makes. With other actions the job returns to waiting, or stays active.
END_OF = {"complete": "completed", "fail": "failed", "cancelled": "cancelled"}
#: Values of `RecordedStep.op` for steps that are not calls.
MARKS = frozenset({"drained", "partial", "fault"})
#: The attribute of `IdSteps` that holds the steps of each operation.
STEP_LISTS = {
    "enqueue": "enqueues",
    "settle": "settles",
    "get": "reads",
    "report": "reports",
    **dict.fromkeys(("finish", "cancel", "amend", "retry_failed", "forget", "reap", "import"), "others"),
}
ACCEPTED = frozenset({"queued", "updated", "blocked"})
#: Statuses of an enqueue that met an active run, or may have.
MAY_BLOCK = frozenset({"blocked", FOLLOWED, UNKNOWN})
#: Operations that look at any job of a queue, and change some.
HOLDING = frozenset({"reap", "drop", "prune"})


@define(eq=False)
class RecordedRun:
    """A claimed run, with the steps that may have closed it."""

    claim: RecordedStep
    #: Steps that closed the run, or may have, each with the earliest time at which it took effect.
    closing_steps: list[tuple[int, RecordedStep]] = field(factory=list, init=False)

    #: True if a settlement tried to hand the run off.
    handed_off: bool = field(default=False, init=False)

    @property
    def fence(self) -> int:
        return self.claim.fence

    def covers(self, revision: int) -> bool:
        return self.claim.first <= revision <= self.claim.revision

    def earliest_close(self) -> float:
        """Return the earliest time at which the run may be closed; infinity if never."""
        return min((began for began, _ in self.closing_steps), default=inf)


def closed_as(step: RecordedStep) -> str:
    """Return how a step closed its run: the kind of the outcome, or "back" if the job waits again.

    Return "" if the step does not show how it closed the run.
    """
    if step.op == "reap":
        return "cancelled" if step.status == "cancelled" else "back" if not step.unknown else ""
    if step.op != "settle":
        # A finish names a revision, which this run and the run before may both have held.
        return ""
    if step.status in ("cancelled", "returned"):
        return "cancelled" if step.status == "cancelled" else "back"
    return END_OF.get(step.how, "") if step.status == "done" else ""


@define
class IdSteps:
    """All steps on one id."""

    key: Key
    enqueues: list[RecordedStep] = field(factory=list)
    claims: list[RecordedStep] = field(factory=list)
    settles: list[RecordedStep] = field(factory=list)
    reads: list[RecordedStep] = field(factory=list)
    reports: list[RecordedStep] = field(factory=list)
    #: Steps of cancel, amend, finish, retry_failed, forget, reap and import.
    others: list[RecordedStep] = field(factory=list)
    runs: list[RecordedRun] = field(factory=list)

    def others_of(self, op: str) -> list[RecordedStep]:
        return [step for step in self.others if step.op == op] if self.others else []

    def steps(self) -> list[RecordedStep]:
        """Return all steps in the order they were sent."""
        everything = [
            *(*self.enqueues, *self.claims, *self.settles, *self.reports, *self.others, *self.reads),
        ]
        return sorted(everything, key=lambda step: step.began)

    @property
    def accepted(self) -> list[RecordedStep]:
        """The accepted enqueues, without repeated ones."""
        return [step for step in self.enqueues if step.status in ACCEPTED and not step.repeated]

    @property
    def imported(self) -> list[RecordedStep]:
        """The imports that took effect, or may have."""
        return [step for step in self.others_of("import") if step.status in ("imported", "unknown")]

    @property
    def uncertain(self) -> list[RecordedStep]:
        """The enqueues with an unknown result: unanswered ones and follow-ups."""
        return [step for step in self.enqueues if step.unknown or step.status == FOLLOWED]


@define
class RecordedHistory:
    """An indexed history, the input of every rule."""

    ids: dict[Key, IdSteps] = field(factory=dict)
    #: By queue: claims that took fewer jobs than their limit, or lost their lease.
    short_claims: dict[str, list[RecordedStep]] = field(factory=lambda: defaultdict(list))
    #: By lease: steps of grant, renew and drop.
    leases: dict[str, list[RecordedStep]] = field(factory=lambda: defaultdict(list))
    #: By queue: reaps, drops and prunes, and claims that lost their lease. Each may hold any job shortly.
    holding: dict[str, list[RecordedStep]] = field(factory=lambda: defaultdict(list))
    configures: dict[str, list[RecordedStep]] = field(factory=lambda: defaultdict(list))
    #: By queue: claims and reaps without an answer. They may have taken or returned any job since.
    unanswered: dict[str, list[RecordedStep]] = field(factory=lambda: defaultdict(list))
    #: By queue and lease: the first drop. It may have closed any run under the lease since.
    drops: dict[tuple[str, str], RecordedStep] = field(factory=dict)
    #: By queue: answered readings of the log.
    log_reads: dict[str, list[RecordedStep]] = field(factory=lambda: defaultdict(list))
    counts: list[RecordedStep] = field(factory=list)
    effects: list[RecordedStep] = field(factory=list)
    faults: list[RecordedStep] = field(factory=list)
    #: The time at which all queues had been drained, or None.
    drained: int | None = None
    #: True if the history does not begin with an empty storage.
    partial: bool = False
    size: int = 0
    unknown: int = 0

    @classmethod
    def from_steps(cls, steps: Iterable[RecordedStep]) -> RecordedHistory:
        """Index the steps, and find the steps that may have closed each run."""
        history = cls()
        for step in without_superseded(steps):
            history.size += 1
            history.unknown += step.unknown and step.op not in MARKS
            history._add(step)
        for id_steps in history.ids.values():
            history._find_closing_steps(id_steps)
        return history

    def steps_of(self, queue: str, id: str) -> IdSteps:
        key = (queue, id)
        id_steps = self.ids.get(key)
        if id_steps is None:
            id_steps = self.ids[key] = IdSteps(key)
        return id_steps

    def _add(self, step: RecordedStep) -> None:
        op = step.op
        if op in HOLDING or (op == "claim" and step.status == "lost"):
            self.holding[step.queue].append(step)
        if op in STEP_LISTS and (step.id or op != "reap"):
            getattr(self.steps_of(step.queue, step.id), STEP_LISTS[op]).append(step)
        elif op == "claim" and step.status == "taken":
            self.steps_of(step.queue, step.id).claims.append(step)
        elif op in ("claim", "reap") and step.unknown:
            self.unanswered[step.queue].append(step)
        elif op == "claim":
            self.short_claims[step.queue].append(step)
        elif op in ("grant", "renew", "drop"):
            self.leases[step.lease].append(step)
            if op == "drop" and step.status != "refused":
                keep_first(self.drops, (step.queue, step.lease), step)
        else:
            self._add_rare(step)

    def _add_rare(self, step: RecordedStep) -> None:
        if step.op == "configure":
            self.configures[step.queue].append(step)
        elif step.op == "events":
            self.log_reads[step.queue].append(step)
        elif step.op == "counts":
            self.counts.append(step)
        elif step.op == "effect":
            self.effects.append(step)
        elif step.op == "fault":
            self.faults.append(step)
        elif step.op == "drained":
            self.drained = step.began if step.ended is None else step.ended
        elif step.op == "partial":
            self.partial = True

    def _find_closing_steps(self, id_steps: IdSteps) -> None:
        """Find the steps that closed each run, or may have."""
        id_steps.runs = sorted(map(RecordedRun, id_steps.claims), key=lambda run: run.fence)
        by_fence = {run.fence: run for run in id_steps.runs}
        for step in id_steps.settles:
            if (run := by_fence.get(step.fence)) is not None:
                run.handed_off = run.handed_off or step.how == "hand_off"
                if may_close(step):
                    run.closing_steps.append((step.began, step))
        # A superseding enqueue ends a handed-off run at once, and only asks a run under a lease to end.
        handed_off = [run for run in id_steps.runs if run.handed_off]
        for step in id_steps.enqueues if handed_off else ():
            if step.supersedes and step.status in MAY_BLOCK:
                close_begun(handed_off, step)
        for step in id_steps.others:
            self._add_closing_step(id_steps, by_fence, step)
        queue = id_steps.key[0]
        reap = self._first_unanswered.get((queue, "reap"))
        for run in id_steps.runs:
            for broad_step in (reap, self.drops.get((queue, run.claim.lease))):
                if broad_step is not None:
                    run.closing_steps.append((broad_step.began, broad_step))

    def _add_closing_step(
        self, id_steps: IdSteps, by_fence: dict[int, RecordedRun], step: RecordedStep
    ) -> None:
        if step.op == "reap":
            if (run := by_fence.get(step.fence)) is not None:
                run.closing_steps.append((step.began, step))
        elif step.op == "forget" or (step.op == "cancel" and step.running):
            if step.status not in NOT_CLOSING:
                close_begun(id_steps.runs, step)
        elif step.op == "finish" and step.status in ("done", "unknown"):
            for run in id_steps.runs:
                if run.covers(step.revision):
                    run.closing_steps.append((step.began, step))

    @cached_property
    def settings(self) -> dict[str, SettingsTimeline]:
        """The settings of each configured queue over time."""
        return {queue: SettingsTimeline(steps) for queue, steps in self.configures.items()}

    def first_unanswered_claim(self, queue: str) -> float:
        """Return the time of the first claim without an answer. It may have taken any job."""
        first = self._first_unanswered.get((queue, "claim"))
        return inf if first is None else first.began

    @cached_property
    def _first_unanswered(self) -> dict[tuple[str, str], RecordedStep]:
        """The first claim and the first reap of each queue without an answer."""
        firsts: dict[tuple[str, str], RecordedStep] = {}
        for step in (step for steps in self.unanswered.values() for step in steps):
            keep_first(firsts, (step.queue, step.op), step)
        return firsts

    @cached_property
    def by_queue(self) -> dict[str, list[IdSteps]]:
        queues: dict[str, list[IdSteps]] = defaultdict(list)
        for id_steps in self.ids.values():
            queues[id_steps.key[0]].append(id_steps)
        return queues


def keep_first(firsts: dict[KeyT, RecordedStep], key: KeyT, step: RecordedStep) -> None:
    """Keep the step that was sent first."""
    if key not in firsts or step.began < firsts[key].began:
        firsts[key] = step


def close_begun(runs: Iterable[RecordedRun], step: RecordedStep) -> None:
    """Add the step to those that may have closed each run that was claimed before its answer."""
    for run in runs:
        if step.ended is None or step.ended >= run.claim.began:
            run.closing_steps.append((step.began, step))


#: Answers of a cancel or a forget that did not close a run.
NOT_CLOSING = frozenset({"refused", "requested", "active", "completed", "failed", "not_found"})


def may_close(step: RecordedStep) -> bool:
    """Return whether a settlement closed its run, or may have."""
    return step.unknown or step.status in ("done", "returned", "cancelled")
