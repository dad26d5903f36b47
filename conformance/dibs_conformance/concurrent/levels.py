"""L1 and L2: examples of several clients, one line at a time as a seed says, and then all at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dibs_conformance.concurrent.examples import Concert, Stage, Tally, composed
from dibs_conformance.concurrent.held_locks import can_hold, held
from dibs_conformance.concurrent.process_clients import company
from dibs_conformance.concurrent.thread_clients import NAMES, troupe
from dibs_conformance.report import Failure, Findings, Gap, LawReport
from dibs_conformance.report.findings import law_report, merge
from dibs_conformance.target import LevelPlan

CLIENTS = 3
#: So often do free threads change turns, in s; Python's own 5 ms is longer than any verb of memory takes.
SWITCHING = 1e-5

#: Pairs of verbs that meet in nearly every example: without them nothing was raced.
RACES = (
    ("claim beside claim", "2"),
    ("claim beside enqueue", "3"),
    ("enqueue beside enqueue", "3"),
    ("enqueue beside settle", "3, the fold law"),
    ("claim beside settle", "3"),
    ("settle beside settle", "3"),
    ("cancel beside settle", "3"),
    ("reap beside settle", "3, leases"),
    ("claim beside reap", "3, leases"),
)


#: So many examples are played at most only for two verbs to meet.
MOST = 200
PAIRS = [(name.partition(" ")[0], name.rpartition(" ")[2]) for name, _ in RACES]


def interleaved(plan: LevelPlan) -> Findings:
    """L1: steps inside of verbs, in an order drawn from the seed."""
    if not plan.claims.manual_clock:
        return Findings(untested=(no_clock(),))
    inside = can_hold(plan.locations.target)
    budget = plan.budget / (1 + inside)
    with troupe(plan.locations, CLIENTS, stepping=True) as stage:
        found = Trying(plan, budget, orders=True).findings(stage)
    if not inside or found.failures:
        return found
    return merge(found, inside_functions(plan, budget))


def inside_functions(plan: LevelPlan, budget: float) -> Findings:
    """Calls that stand still in the middle of a function, at a lock held from a second connection."""
    with troupe(plan.locations, CLIENTS, stepping=False) as players, held(players, players.location) as stage:
        found = Trying(plan, budget).findings(stage)
        sentence = "Functions that stop in the middle of each other come to what one order comes to."
        law = law_report("held inside a function", "4.2", sentence, stage.stood, broken=bool(found.failures))
        return merge(found, Findings(laws=(law,)))


def at_once(plan: LevelPlan) -> Findings:
    """L2: threads without anybody's order, and processes where the storage is for several."""
    if not plan.claims.manual_clock:
        return Findings(untested=(no_clock(),))
    shares = 2 if plan.claims.shared else 1
    with troupe(plan.locations, CLIENTS, stepping=False) as threads, switching(SWITCHING):
        found = Trying(plan, plan.budget / shares).findings(threads)
    if not plan.claims.shared:
        alone = Gap(name="processes", why="the storage is not for several (`shared` is not claimed)")
        return merge(found, Findings(spared=(alone,)))
    if found.failures:
        return found
    with company(plan.locations, NAMES[:CLIENTS]) as processes:
        return merge(found, Trying(plan, plan.budget / shares).findings(processes))


@contextmanager
def switching(interval: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Trying:
    """Plays examples on a stage until the budget, or their number, is used up, or one fails."""

    def __init__(self, plan: LevelPlan, budget: float, *, orders: bool = False) -> None:
        self._plan, self._orders = plan, orders
        self._ends = time.monotonic() + budget

    def findings(self, stage: Stage) -> Findings:
        concert = Concert(stage)
        failure = self._first_failure(concert)
        laws = laws_of(concert.tally, failure)
        if self._orders:
            laws += races_of(concert.tally)
        return Findings(
            histories=concert.tally.histories,
            events=concert.tally.calls,
            laws=laws,
            failures=(failure,) if failure is not None else (),
            untested=undecided(concert.tally),
        )

    def _first_failure(self, concert: Concert) -> Failure | None:
        done = 0
        while self._goes_on(done) or (done < MOST and self._unmet(concert)):
            # Two may miss each other: what never met by then is made to try again.
            unmet = self._unmet(concert)
            pair = PAIRS[done] if done < len(PAIRS) else next(iter(unmet), None)
            failure = concert.try_one(composed(self._plan.seed + done, CLIENTS, pair))
            if failure is not None:
                return failure
            done += 1
            self._plan.progress(done)
        return None

    def _unmet(self, concert: Concert) -> list[tuple[str, str]]:
        """The pairs of verbs that have to overlap on this level and did not yet; on L2 any two will do."""
        if not self._orders:
            return [] if concert.tally.overlaps else PAIRS
        return [
            pair for pair, (name, _) in zip(PAIRS, RACES, strict=True) if not concert.tally.raced.get(name)
        ]

    def _goes_on(self, done: int) -> bool:
        if self._plan.examples is not None:
            return done < self._plan.examples
        return time.monotonic() < self._ends


def laws_of(tally: Tally, failure: Failure | None) -> tuple[LawReport, ...]:
    broken = failure is not None
    order = law_report(
        "some order explains every answer",
        "4.2",
        "What calls that overlap were told, and left behind, some order of their steps explains.",
        tally.overlaps,
        broken=broken,
    )
    return (order,)


def races_of(tally: Tally) -> tuple[LawReport, ...]:
    return tuple(raced(name, section, tally) for name, section in RACES)


def raced(name: str, section: str, tally: Tally) -> LawReport:
    sentence = "Two calls that overlap come to what one of the two orders comes to."
    return law_report(name, section, sentence, tally.raced.get(name, 0), broken=False)


def undecided(tally: Tally) -> tuple[Gap, ...]:
    """A few examples have more orders than are tried; where they are many, little was tested."""
    if tally.undecided <= max(2, tally.histories // 20):
        return ()
    return (Gap(name="orders", why=f"{tally.undecided} of {tally.histories} examples have too many"),)


def no_clock() -> Gap:
    return Gap(name="races", why="they need a storage that can be opened with clock='manual'")
