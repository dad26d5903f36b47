"""A history by id: the steps sorted into what the rules ask for, in one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TypeVar

from dibs_conformance.history.step import FOLLOWED, Step, answered

Key = tuple[str, str]
K = TypeVar("K")

#: What a settlement asks for, and the end it makes; what is not here comes back, or stays.
END_OF = {"complete": "completed", "fail": "failed", "cancelled": "cancelled"}
#: Lines that tell of no call.
MARKS = frozenset({"drained", "partial", "fault"})
#: Where each kind of step of an id is kept.
LISTS = {
    "enqueue": "enqueues",
    "settle": "settles",
    "get": "reads",
    **dict.fromkeys(("finish", "cancel", "amend", "retry_failed", "forget", "reap"), "others"),
}
ACCEPTED = frozenset({"queued", "updated", "blocked"})


class Run:
    """A claimed run, and whatever may have closed it."""

    __slots__ = ("claim", "closers")

    def __init__(self, claim: Step) -> None:
        self.claim = claim
        #: Steps that closed it, or may have: each as the time from which it is possible, and the step.
        self.closers: list[tuple[int, Step]] = []

    @property
    def fence(self) -> int:
        return self.claim.fence

    @property
    def range(self) -> tuple[int, int]:
        return self.claim.first, self.claim.revision

    def covers(self, revision: int) -> bool:
        return self.claim.first <= revision <= self.claim.revision

    def closable(self, *, but: Step | None = None) -> float:
        """From when on it may be closed, leaving one step out; never: infinity."""
        return min((began for began, step in self.closers if step is not but), default=inf)

    def ended_as(self) -> set[str]:
        """Every way in which it was said to have been closed: an end, or "back"."""
        return {way for _, step in self.closers if (way := way_of(step))}


def way_of(step: Step) -> str:
    """How a step says that a run was closed; empty when it does not say."""
    if step.op == "reap":
        return "cancelled" if step.status == "cancelled" else "back" if not step.unknown else ""
    if step.op != "settle":
        # A finish names a revision, which a run and the one before it may both have held.
        return ""
    if step.status in ("cancelled", "returned"):
        return "cancelled" if step.status == "cancelled" else "back"
    return END_OF.get(step.how, "") if step.status == "done" else ""


@dataclass(slots=True)
class Life:
    """All that was done to one id."""

    key: Key
    enqueues: list[Step] = field(default_factory=list)
    claims: list[Step] = field(default_factory=list)
    settles: list[Step] = field(default_factory=list)
    reads: list[Step] = field(default_factory=list)
    #: Cancels, amends, finishes, retries by hand, forgets, reaps.
    others: list[Step] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def of(self, op: str) -> list[Step]:
        return [step for step in self.others if step.op == op] if self.others else []

    def steps(self) -> list[Step]:
        """All of them, in the order in which they were sent."""
        everything = [*self.enqueues, *self.claims, *self.settles, *self.others, *self.reads]
        return sorted(everything, key=lambda step: step.began)

    @property
    def accepted(self) -> list[Step]:
        """The enqueues that were taken in, each once, by revision."""
        return [step for step in self.enqueues if step.status in ACCEPTED and not step.repeated]

    @property
    def unsure(self) -> list[Step]:
        """The enqueues of which nobody knows what they came to."""
        return [step for step in self.enqueues if step.unknown or step.status == FOLLOWED]


@dataclass
class History:
    """What the rules are held against."""

    lives: dict[Key, Life] = field(default_factory=dict)
    #: Claims that brought nothing more, lost ones and unknown ones, by queue.
    short: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    #: Grants, renewals and drops, by lease.
    leases: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    settings: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    #: The first reap of a queue without an answer: from then on it may have closed any run.
    lost_reaps: dict[str, Step] = field(default_factory=dict)
    #: The first drop of a lease in a queue: from then on it may have closed any run under it.
    drops: dict[tuple[str, str], Step] = field(default_factory=dict)
    counts: list[Step] = field(default_factory=list)
    effects: list[Step] = field(default_factory=list)
    faults: list[Step] = field(default_factory=list)
    #: When every queue had been drained; None: never.
    drained: int | None = None
    #: The history does not begin with the storage: what came before is not known.
    partial: bool = False
    size: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, steps: Iterable[Step]) -> History:
        """Sort steps in, and find out what may have closed each run."""
        history = cls()
        for step in answered(steps):
            history.size += 1
            history.unknown += step.unknown and step.op not in MARKS
            history._take(step)
        for life in history.lives.values():
            history._close(life)
        return history

    def life(self, queue: str, id: str) -> Life:
        key = (queue, id)
        life = self.lives.get(key)
        if life is None:
            life = self.lives[key] = Life(key)
        return life

    def _take(self, step: Step) -> None:
        op = step.op
        if op in LISTS and (step.id or op != "reap"):
            getattr(self.life(step.queue, step.id), LISTS[op]).append(step)
        elif op == "claim" and step.status == "taken":
            self.life(step.queue, step.id).claims.append(step)
        elif op == "claim":
            self.short[step.queue].append(step)
        elif op == "reap" and step.unknown:
            keep_first(self.lost_reaps, step.queue, step)
        elif op in ("grant", "renew", "drop"):
            self.leases[step.lease].append(step)
            if op == "drop" and step.status != "refused":
                keep_first(self.drops, (step.queue, step.lease), step)
        else:
            self._take_rare(step)

    def _take_rare(self, step: Step) -> None:
        if step.op == "configure":
            self.settings[step.queue].append(step)
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

    def _close(self, life: Life) -> None:
        """Find what closed each run, or may have."""
        life.runs = sorted(map(Run, life.claims), key=lambda run: run.fence)
        by_fence = {run.fence: run for run in life.runs}
        for step in life.settles:
            if (run := by_fence.get(step.fence)) is not None and closes(step):
                run.closers.append((step.began, step))
        for step in life.others:
            self._close_by(life, by_fence, step)
        for run in life.runs:
            for wide in (self.lost_reaps.get(life.key[0]), self.drops.get((life.key[0], run.claim.lease))):
                if wide is not None:
                    run.closers.append((wide.began, wide))

    def _close_by(self, life: Life, by_fence: dict[int, Run], step: Step) -> None:
        if step.op == "reap":
            if (run := by_fence.get(step.fence)) is not None:
                run.closers.append((step.began, step))
        elif step.op == "forget" or (step.op == "cancel" and step.running):
            if step.status not in NOT_CLOSING:
                for run in life.runs:
                    if step.ended is None or step.ended >= run.claim.began:
                        run.closers.append((step.began, step))
        elif step.op == "finish" and step.status in ("done", "unknown"):
            for run in life.runs:
                if run.covers(step.revision):
                    run.closers.append((step.began, step))

    def first_lost_claim(self, queue: str) -> float:
        """When the first claim was sent whose answer never came; from then on anything may be held."""
        return self._lost_claims.get(queue, inf)

    @cached_property
    def _lost_claims(self) -> dict[str, int]:
        lost = {queue: [s.began for s in steps if s.unknown] for queue, steps in self.short.items()}
        return {queue: min(began) for queue, began in lost.items() if began}

    @cached_property
    def by_queue(self) -> dict[str, list[Life]]:
        queues: dict[str, list[Life]] = defaultdict(list)
        for life in self.lives.values():
            queues[life.key[0]].append(life)
        return queues


def keep_first(firsts: dict[K, Step], key: K, step: Step) -> None:
    """Keep the step that was sent first."""
    if key not in firsts or step.began < firsts[key].began:
        firsts[key] = step


#: Answers after which a cancel or a forget has closed no run.
NOT_CLOSING = frozenset({"refused", "requested", "active", "completed", "failed", "not_found"})


def closes(step: Step) -> bool:
    """Whether a settlement closed its run, or may have."""
    return step.unknown or step.status in ("done", "returned", "cancelled")
