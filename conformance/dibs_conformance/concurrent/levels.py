"""Levels L1 and L2: concurrent examples, first interleaved line by line from a seed, then without a
scheduler.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import structs

from dibs_conformance.concurrent.examples import (
    RACES,
    SECTIONS,
    ClientGroup,
    Example,
    ExampleCounts,
    ExampleRunner,
    race_example,
    random_example,
)
from dibs_conformance.concurrent.log_readers import LAW as READER_LAW
from dibs_conformance.concurrent.log_readers import SENTENCE as READER_SENTENCE
from dibs_conformance.concurrent.log_readers import try_late_commit
from dibs_conformance.concurrent.process_clients import process_clients
from dibs_conformance.concurrent.thread_clients import NAMES, is_postgres, locked_clients, thread_clients
from dibs_conformance.report import Findings, LawFailure, LawReport, SkippedTest
from dibs_conformance.report.values import law_report, merge_findings
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs.verb import Race

CLIENTS = 3
#: Interval in s at which Python switches threads. Its default of 5 ms is longer than any call of the memory
#: storage.
SWITCH_INTERVAL = 1e-5

#: Extra examples to run until every pair has overlapped, at most.
MAX_FOR_PAIRS = 200


def interleaved(plan: LevelPlan) -> Findings:
    """Run L1: clients interleave inside calls, in an order drawn from the seed."""
    if not plan.claims.manual_clock:
        return Findings(untested=(manual_clock_gap(),))
    inside = is_postgres(plan.locations.target)
    budget = plan.budget / (1 + inside)
    with thread_clients(plan.locations, CLIENTS, scheduled=True) as clients:
        found = ExampleLoop(plan, budget, all_pairs=True).findings(clients)
    if not found.failures and plan.claims.transactions:
        found = merge_findings(found, try_late_commit(plan))
    if not inside or found.failures:
        return found
    return merge_findings(found, inside_functions(plan, budget))


def inside_functions(plan: LevelPlan, budget: float) -> Findings:
    """Run examples whose calls stop inside Postgres functions, at a lock of a second connection."""
    with (
        thread_clients(plan.locations, CLIENTS, scheduled=False) as threads,
        locked_clients(threads, threads.location) as clients,
    ):
        found = ExampleLoop(plan, budget).findings(clients)
        sentence = "Calls that stop inside a function while others run give the results of some order."
        law = law_report(
            "held inside a function", "4.2", sentence, clients.blocked_calls, broken=bool(found.failures)
        )
        return merge_findings(found, Findings(laws=(law,)))


def unscheduled(plan: LevelPlan) -> Findings:
    """Run L2: threads without a scheduler, and processes if the storage claims `shared`."""
    if not plan.claims.manual_clock:
        return Findings(untested=(manual_clock_gap(),))
    shares = 2 if plan.claims.shared else 1
    with (
        thread_clients(plan.locations, CLIENTS, scheduled=False) as threads,
        switch_interval(SWITCH_INTERVAL),
    ):
        found = ExampleLoop(plan, plan.budget / shares).findings(threads)
    if not plan.claims.shared:
        gap = SkippedTest(
            name="processes", why="only one process can use the storage (it does not claim `shared`)"
        )
        return merge_findings(found, Findings(spared=(gap,)))
    if found.failures:
        return found
    with process_clients(plan.locations, NAMES[:CLIENTS]) as processes:
        return merge_findings(found, ExampleLoop(plan, plan.budget / shares).findings(processes))


@contextmanager
def switch_interval(interval: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class ExampleLoop:
    """The loop that runs examples until the budget or their number is used up, or until one fails."""

    def __init__(self, plan: LevelPlan, budget: float, *, all_pairs: bool = False) -> None:
        self._plan, self._all_pairs = plan, all_pairs
        self._deadline = time.monotonic() + budget
        self._visits: Counter[Race] = Counter()

    def findings(self, clients: ClientGroup) -> Findings:
        runner = ExampleRunner(clients)
        self._plan.sources.append(lambda: counted(runner.counts))
        failure = self._first_failure(runner)
        pairs = pair_laws(runner.counts) if self._all_pairs else ()
        laws = (order_law(runner.counts, failure), reader_law(runner.counts), *pairs)
        return structs.replace(
            counted(runner.counts),
            laws=laws,
            failures=(failure,) if failure is not None else (),
            untested=undecided_gap(runner.counts),
        )

    def _first_failure(self, runner: ExampleRunner) -> LawFailure | None:
        done = 0
        while self._has_time(done) or (done < MAX_FOR_PAIRS and self._missing_races(runner)):
            failure = runner.run(self._next_example(done, runner))
            if failure is not None:
                return failure
            done += 1
            self._plan.progress(done)
        return None

    def _next_example(self, done: int, runner: ExampleRunner) -> Example:
        """Return an example of each race, then of races and of random calls in turn.

        Two calls of a race may miss each other. Races that have not overlapped by now are tried again.
        """
        seed = self._plan.seed + done
        missing = self._missing_races(runner)
        if done < len(RACES) and self._has_time(done):
            race = RACES[done]
        elif missing:
            race = missing[0]
        elif done % 2:
            return random_example(seed, CLIENTS)
        else:
            race = RACES[done // 2 % len(RACES)]
        self._visits[race] += 1
        return race_example(seed, CLIENTS, race, self._visits[race] - 1)

    def _missing_races(self, runner: ExampleRunner) -> list[Race]:
        """Return the races whose operations have not overlapped yet.

        On L2 any overlap is enough, and any reading of the log.
        """
        if not self._all_pairs:
            if not runner.counts.log_reads:
                return [race for race in RACES if race.second == "events"]
            return [] if runner.counts.overlaps else list(RACES)
        return [race for race in RACES if not runner.counts.overlapping_pairs.get(race.name)]

    def _has_time(self, done: int) -> bool:
        if self._plan.examples is not None:
            return done < self._plan.examples
        return time.monotonic() < self._deadline


def counted(counts: ExampleCounts) -> Findings:
    """Return the numbers of histories and calls, and the verbs that overlapped with another call."""
    verbs = {verb for pair in counts.overlapping_pairs for verb in pair.split(" beside ")}
    return Findings(
        histories=counts.histories,
        events=counts.calls,
        tried={"overlapping calls": counts.overlaps},
        raced=tuple(sorted(verbs)),
    )


def order_law(counts: ExampleCounts, failure: LawFailure | None) -> LawReport:
    return law_report(
        "some order explains every answer",
        "4.2",
        "Some order of the steps explains all answers of overlapping calls and the state they leave.",
        counts.overlaps,
        broken=failure is not None,
    )


def reader_law(counts: ExampleCounts) -> LawReport:
    return law_report(READER_LAW, "3, Events", READER_SENTENCE, counts.log_reads, broken=False)


def pair_laws(counts: ExampleCounts) -> tuple[LawReport, ...]:
    return tuple(pair_law(name, section, counts) for name, section in SECTIONS.items())


def pair_law(name: str, section: str, counts: ExampleCounts) -> LawReport:
    sentence = "Two overlapping calls give the results of one of the two orders."
    return law_report(name, section, sentence, counts.overlapping_pairs.get(name, 0), broken=False)


def undecided_gap(counts: ExampleCounts) -> tuple[SkippedTest, ...]:
    """Return a gap if more than 5 % of the examples (and more than 2) had too many orders to try."""
    if counts.undecided <= max(2, counts.histories // 20):
        return ()
    return (
        SkippedTest(
            name="orders",
            why=f"{counts.undecided} of {counts.histories} examples have more orders than are tried",
        ),
    )


def manual_clock_gap() -> SkippedTest:
    return SkippedTest(name="races", why="these tests need a storage that can be opened with clock='manual'")
