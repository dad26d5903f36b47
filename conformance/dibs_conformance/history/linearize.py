"""Linearizability by brute force: whether any order of the calls on one id explains every answer.

It is exponential in how many calls overlap, and needs none of the insight the other rules have: a naive
reading of the contract for one id (slot.py) says what each call would answer, and the search tries every
call that may come next. A history is cut where nothing was under way, so that only the width counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from dibs_conformance.history.by_id import History, Life
from dibs_conformance.history.slot_model import NOTHING, Slot, outcomes
from dibs_conformance.history.step import FOLLOWED, Step

#: Calls that overlap, at most, and states that are tried for one window: more would take too long.
WIDEST = 12
MOST_STATES = 5_000

#: An id as it may be, and which of the calls that were never answered have happened.
State = tuple[Slot, frozenset[int]]


class TooWide(Exception):
    """More calls overlap than can be tried, or one of them is beyond the naive reading."""


def explained(history: History, life: Life) -> bool:
    """Whether some order of the calls on an id explains all of their answers. Raises TooWide."""
    steps = calls_on(history, life)
    unknown = dict(enumerate(step for step in steps if step.unknown))
    if len(unknown) > WIDEST:
        raise TooWide(f"{len(unknown)} calls were never answered")
    states: set[State] = {(NOTHING, frozenset())}
    for window in windows(step for step in steps if not step.unknown):
        over = max(map(answer, window))
        sent = {n: step for n, step in unknown.items() if step.began <= over}
        states = {end for state in states for end in Window(window, sent).ends(state)}
        if not states:
            return False
    return True


def calls_on(history: History, life: Life) -> list[Step]:
    """Everything that may have touched the id, in the order in which it was sent. Raises TooWide."""
    queue = life.key[0]
    if history.first_lost_claim(queue) < inf or queue in history.lost_reaps:
        raise TooWide("a claim or a reap was never answered: nobody knows what it took")
    leases = {claim.lease for claim in life.claims}
    drops = [s for lease in leases for s in history.leases.get(lease, ()) if s.op == "drop"]
    steps = [*life.steps(), *(drop for drop in drops if drop.queue == queue)]
    steps = [step for step in steps if step.status != "refused" or step.op in ("settle", "finish")]
    for step in steps:
        beyond = step.unknown and step.op in ("enqueue", "retry_failed")
        if beyond or step.status == FOLLOWED or (step.op, step.status) == ("retry_failed", "queued"):
            raise TooWide(f"{step.op} {step.status} has numbers that nobody was told")
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
        latest = max(latest, answer(step))
    if window:
        yield window


class Window:
    """All orders of the calls of one window, and of unanswered ones that may happen in it."""

    def __init__(self, known: list[Step], unknown: dict[int, Step]) -> None:
        self._steps = [*known, *unknown.values()]
        self._names = [*range(-len(known), 0), *unknown]
        self._all = (1 << len(known)) - 1
        self._needs = [self._before(step, n) for n, step in enumerate(self._steps)]

    def _before(self, later: Step, number: int) -> int:
        """The calls that come before this one: answered before it was sent, or earlier in its batch."""
        return sum(
            1 << n
            for n, step in enumerate(self._steps)
            if answer(step) < later.began or (n < number and same_call(step, later))
        )

    def ends(self, state: State) -> set[State]:
        """Every state the id can be in after an order that explains the answers."""
        slot, used = state
        begun = sum(1 << n for n, name in enumerate(self._names) if name in used)
        seen = {(begun, slot)}
        stack, found = [(begun, slot)], set()
        while stack:
            done, slot = stack.pop()
            if done & self._all == self._all:
                found.add((slot, frozenset(self._unknown_in(done))))
            for number in self._next(done):
                for after in outcomes(slot, self._steps[number]):
                    following = (done | 1 << number, after)
                    if following not in seen:
                        seen.add(following)
                        stack.append(following)
            if len(seen) > MOST_STATES:
                raise TooWide(f"more than {MOST_STATES} states")
        return found

    def _next(self, done: int) -> list[int]:
        """The calls that may take effect next."""
        ready = [n for n, needs in enumerate(self._needs) if not done >> n & 1 and not needs & ~done]
        if len(ready) > WIDEST:
            raise TooWide(f"{len(ready)} calls overlap, {WIDEST} can be tried")
        return ready

    def _unknown_in(self, done: int) -> Iterator[int]:
        return (name for n, name in enumerate(self._names) if name >= 0 and done >> n & 1)


def answer(step: Step) -> float:
    return inf if step.ended is None else step.ended


def same_call(a: Step, b: Step) -> bool:
    return a.call != 0 and (a.client, a.call) == (b.client, b.call)
