"""Linearizability by brute force: whether any order of the calls on one id explains every answer.

It is exponential in how many calls overlap, and needs none of the insight the other rules have: a naive
reading of the contract for one id (slot.py) says what each call would answer, and the search tries every
call that may come next. A history is cut where nothing was under way, so that only the width counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from dibs_conformance.history.by_id import IdSteps, RecordedHistory
from dibs_conformance.history.slot_model import EMPTY_SLOT, SlotModel, slots_after
from dibs_conformance.history.step import FOLLOWED, Step

#: Calls that overlap, at most, and states that are tried for one window: more would take too long.
MAX_OVERLAP = 12
MOST_STATES = 5_000

#: An id as it may be, and which of the calls that were never answered have happened.
State = tuple[SlotModel, frozenset[int]]


class Undecidable(Exception):
    """More calls overlap than can be tried, or one of them is beyond the naive reading."""


def is_linearizable(history: RecordedHistory, id_steps: IdSteps) -> bool:
    """Whether some order of the calls on an id explains all of their answers. Raises TooWide."""
    steps = calls_on(history, id_steps)
    unknown = dict(enumerate(step for step in steps if step.unknown))
    if len(unknown) > MAX_OVERLAP:
        raise Undecidable(f"{len(unknown)} calls were never answered")
    states: set[State] = {(EMPTY_SLOT, frozenset())}
    for window in windows(step for step in steps if not step.unknown):
        window_end = max(map(answered_at, window))
        started = {n: step for n, step in unknown.items() if step.began <= window_end}
        states = {end for state in states for end in Window(window, started).end_states(state)}
        if not states:
            return False
    return True


def calls_on(history: RecordedHistory, id_steps: IdSteps) -> list[Step]:
    """Everything that may have touched the id, in the order in which it was sent. Raises TooWide."""
    queue = id_steps.key[0]
    if history.first_unanswered_claim(queue) < inf or queue in history.unanswered_reaps:
        raise Undecidable("a claim or a reap was never answered: nobody knows what it took")
    leases = {claim.lease for claim in id_steps.claims}
    drops = [s for lease in leases for s in history.leases.get(lease, ()) if s.op == "drop"]
    steps = [*id_steps.steps(), *(drop for drop in drops if drop.queue == queue)]
    steps = [step for step in steps if step.status != "refused" or step.op in ("settle", "finish")]
    for step in steps:
        unknown_numbers = step.unknown and step.op in ("enqueue", "retry_failed")
        if unknown_numbers or step.status == FOLLOWED or (step.op, step.status) == ("retry_failed", "queued"):
            raise Undecidable(f"{step.op} {step.status} has numbers that nobody was told")
    # A turn settles first, then it claims.
    return sorted(steps, key=lambda step: (step.began, step.op == "claim"))


def windows(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Cut where every call that was sent had been answered."""
    window: list[Step] = []
    latest = -inf
    for step in steps:
        if window and latest < step.began:
            yield window
            window = []
        window.append(step)
        latest = max(latest, answered_at(step))
    if window:
        yield window


class Window:
    """All orders of the calls of one window, and of unanswered ones that may happen in it."""

    def __init__(self, known: list[Step], unknown: dict[int, Step]) -> None:
        self._steps = [*known, *unknown.values()]
        self._unknown_ids = [*range(-len(known), 0), *unknown]
        self._known_mask = (1 << len(known)) - 1
        self._predecessors = [self._predecessors_of(step, n) for n, step in enumerate(self._steps)]

    def _predecessors_of(self, later: Step, number: int) -> int:
        """The calls that come before this one: answered before it was sent, or earlier in its batch."""
        return sum(
            1 << n
            for n, step in enumerate(self._steps)
            if answered_at(step) < later.began or (n < number and same_call(step, later))
        )

    def end_states(self, state: State) -> set[State]:
        """Every state the id can be in after an order that explains the answers."""
        slot, applied = state
        applied_mask = sum(1 << n for n, name in enumerate(self._unknown_ids) if name in applied)
        visited = {(applied_mask, slot)}
        stack, found = [(applied_mask, slot)], set()
        while stack:
            done, slot = stack.pop()
            if done & self._known_mask == self._known_mask:
                found.add((slot, frozenset(self._unknown_in(done))))
            for number in self._next(done):
                for after in slots_after(slot, self._steps[number]):
                    following = (done | 1 << number, after)
                    if following not in visited:
                        visited.add(following)
                        stack.append(following)
            if len(visited) > MOST_STATES:
                raise Undecidable(f"more than {MOST_STATES} states")
        return found

    def _next(self, done: int) -> list[int]:
        """The calls that may take effect next."""
        ready = [
            n
            for n, predecessors in enumerate(self._predecessors)
            if not done >> n & 1 and not predecessors & ~done
        ]
        if len(ready) > MAX_OVERLAP:
            raise Undecidable(f"{len(ready)} calls overlap, {MAX_OVERLAP} can be tried")
        return ready

    def _unknown_in(self, done: int) -> Iterator[int]:
        return (name for n, name in enumerate(self._unknown_ids) if name >= 0 and done >> n & 1)


def answered_at(step: Step) -> float:
    return inf if step.ended is None else step.ended


def same_call(a: Step, b: Step) -> bool:
    return a.call != 0 and (a.client, a.call) == (b.client, b.call)
