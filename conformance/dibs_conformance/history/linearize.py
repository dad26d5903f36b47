"""The linearizability check of one id: an exhaustive search for an order of calls that explains all answers.

The search is exponential in the number of overlapping calls. It uses a simple model of one id (`slot_model`),
which states what each call would answer, and tries every call that may come next. A history is cut at each
time without a call in flight, so only the number of overlapping calls matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from dibs_conformance.history.by_id import IdSteps, RecordedHistory
from dibs_conformance.history.slot_model import EMPTY_SLOT, SlotModel, slots_after
from dibs_conformance.steps import FOLLOWED, RecordedStep

#: Limits on overlapping calls, and on the states tried for one window.
MAX_OVERLAP = 12
MAX_STATES = 5_000

#: A possible state of the id, and the numbers of the unanswered calls that have taken effect.
State = tuple[SlotModel, frozenset[int]]


class Undecidable(Exception):
    """Raised if too many calls overlap to try all orders, or if the model does not cover one of them."""


def is_linearizable(history: RecordedHistory, id_steps: IdSteps) -> bool:
    """Return whether an order of the calls on an id explains all their answers. Raises Undecidable."""
    steps = calls_on(history, id_steps)
    unknown = dict(enumerate(step for step in steps if step.unknown))
    if len(unknown) > MAX_OVERLAP:
        raise Undecidable(f"{len(unknown)} calls have no answer")
    states: set[State] = {(EMPTY_SLOT, frozenset())}
    for window in split_into_windows(step for step in steps if not step.unknown):
        window_end = max(map(answered_at, window))
        started = {n: step for n, step in unknown.items() if step.began <= window_end}
        states = {end for state in states for end in Window(window, started).end_states(state)}
        if not states:
            return False
    return True


def calls_on(history: RecordedHistory, id_steps: IdSteps) -> list[RecordedStep]:
    """Return all calls that may have changed the id, in the order they were sent. Raises Undecidable."""
    queue = id_steps.key[0]
    if history.first_unanswered_claim(queue) < inf or queue in history.unanswered_reaps:
        raise Undecidable("a claim or a reap has no answer, so it may have taken any job")
    leases = {claim.lease for claim in id_steps.claims}
    drops = [s for lease in leases for s in history.leases.get(lease, ()) if s.op == "drop"]
    steps = [*id_steps.steps(), *(drop for drop in drops if drop.queue == queue)]
    steps = [step for step in steps if step.status != "refused" or step.op in ("settle", "finish")]
    for step in steps:
        unknown_numbers = step.unknown and step.op in ("enqueue", "retry_failed")
        if unknown_numbers or step.status == FOLLOWED or (step.op, step.status) == ("retry_failed", "queued"):
            raise Undecidable(f"{step.op} {step.status} returned no numbers to the client")
    # settle_and_claim settles first, and then claims.
    return sorted(steps, key=lambda step: (step.began, step.op == "claim"))


def split_into_windows(steps: Iterable[RecordedStep]) -> Iterator[list[RecordedStep]]:
    """Cut the steps at each time when every call sent before had been answered."""
    window: list[RecordedStep] = []
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
    """All orders of the calls of one window, with the unanswered calls that may take effect in it."""

    def __init__(self, known: list[RecordedStep], unknown: dict[int, RecordedStep]) -> None:
        self._steps = [*known, *unknown.values()]
        #: The keys of `unknown`; calls with an answer have negative numbers.
        self._call_numbers = [*range(-len(known), 0), *unknown]
        self._known_mask = (1 << len(known)) - 1
        self._predecessors = [self._predecessors_of(step, n) for n, step in enumerate(self._steps)]

    def _predecessors_of(self, later: RecordedStep, number: int) -> int:
        """Return the calls that must come before `later`, as a bit mask of their indexes.

        These are the calls answered before it was sent, and the items before it in its batch.
        """
        return sum(
            1 << n
            for n, step in enumerate(self._steps)
            if answered_at(step) < later.began or (n < number and same_call(step, later))
        )

    def end_states(self, state: State) -> set[State]:
        """Return every state after an order of the calls that explains their answers."""
        slot, applied = state
        applied_mask = sum(1 << n for n, call in enumerate(self._call_numbers) if call in applied)
        visited = {(applied_mask, slot)}
        stack, found = [(applied_mask, slot)], set()
        while stack:
            done, slot = stack.pop()
            if done & self._known_mask == self._known_mask:
                found.add((slot, frozenset(self._unknown_in(done))))
            for number in self._ready_calls(done):
                for after in slots_after(slot, self._steps[number]):
                    next_state = (done | 1 << number, after)
                    if next_state not in visited:
                        visited.add(next_state)
                        stack.append(next_state)
            if len(visited) > MAX_STATES:
                raise Undecidable(f"more than {MAX_STATES} states")
        return found

    def _ready_calls(self, done: int) -> list[int]:
        """Return the calls that may take effect next."""
        ready = [
            n
            for n, predecessors in enumerate(self._predecessors)
            if not done >> n & 1 and not predecessors & ~done
        ]
        if len(ready) > MAX_OVERLAP:
            raise Undecidable(f"{len(ready)} calls overlap; at most {MAX_OVERLAP} can be tried")
        return ready

    def _unknown_in(self, done: int) -> Iterator[int]:
        return (call for n, call in enumerate(self._call_numbers) if call >= 0 and done >> n & 1)


def answered_at(step: RecordedStep) -> float:
    return inf if step.ended is None else step.ended


def same_call(a: RecordedStep, b: RecordedStep) -> bool:
    return a.call != 0 and (a.client, a.call) == (b.client, b.call)
