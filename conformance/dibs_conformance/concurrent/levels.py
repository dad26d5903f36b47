"""Levels L1 and L2: random examples and races of concurrent clients, run from a seed, checked and shrunk.

On L1 the clients interleave line by line, in an order drawn from the seed; on L2 they run without a
scheduler. A race is two verbs that must overlap, in a state where that matters. The module of the first verb
has it (dibs_conformance/verbs). On L1 the first call of a race stops in the middle, at a point that moves
from visit to visit, until the calls of the other client have returned.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import exp, log
from random import Random
from typing import Final, Protocol

from attrs import define, evolve, field, frozen
from msgspec import structs

from dibs.model.results import State
from dibs_conformance.concurrent.linearize import LAW as READER_LAW
from dibs_conformance.concurrent.linearize import SENTENCE as READER_SENTENCE
from dibs_conformance.concurrent.linearize import (
    LinearizeResult,
    late_event,
    linearize,
    reads_of_log,
    timeline,
    try_late_commit,
)
from dibs_conformance.concurrent.process_clients import process_clients
from dibs_conformance.concurrent.thread_clients import NAMES, is_postgres, locked_clients, thread_clients
from dibs_conformance.report import Findings, LawFailure, LawReport, SkippedTest
from dibs_conformance.report.exceptions import exception_failure
from dibs_conformance.report.values import law_report, merge_findings
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs import VERBS, remember
from dibs_conformance.verbs.actions import (
    GRANTS,
    IDS,
    PAST_SHORT_TTL,
    START,
    ClientAction,
    ClientCall,
    ClientState,
    Hold,
    Program,
    Round,
    Snapshot,
)
from dibs_conformance.verbs.configure import ONLY_IN_SETUP, SETTINGS_PATCHES
from dibs_conformance.verbs.enqueue import CONFLICT_OPTIONS, JOB_DATA
from dibs_conformance.verbs.settle import SETTLE_ACTIONS
from dibs_conformance.verbs.verb import Race

RACES: Final = tuple(race for verb in VERBS.values() for race in verb.races)
SECTIONS: Final = {one.name: one.section for one in reversed(RACES)}
#: Relative frequency of each verb among random calls.
WEIGHTS: Final = {verb.name: verb.weight for verb in VERBS.values() if verb.weight}
LISTED_STATES: Final[tuple[State, ...]] = ("waiting", "active", "blocked", "completed")
#: The longest hold, in coroutines that a call enters or resumes, and in lines.
MAX_COROUTINES, MAX_LINES = 8, 300
#: The coroutines at which the first visits of a race stop. At the first coroutine a call has not read yet.
FIRST_HOLDS: Final = (2, 3, 4, 1)


def random_hold(random: Random) -> Hold:
    """Return a random point at which a client stops. Points early in a call are more frequent."""
    if random.random() < 0.7:
        return Hold(random.choice((1, 2, 2, 3, 3, 4, 5, 6, MAX_COROUTINES)))
    return Hold(int(exp(random.uniform(0, log(MAX_LINES)))), "line")


def hold_of_visit(random: Random, visit: int) -> Hold:
    """Return the hold of a race that was tried `visit` times before: the first coroutines, then any point."""
    return Hold(FIRST_HOLDS[visit]) if visit < len(FIRST_HOLDS) else random_hold(random)


def race_actions(race: Race, random: Random) -> tuple[tuple[ClientAction, ...], tuple[ClientAction, ...]]:
    """Return the actions of the two clients of a race."""
    clock_offset = PAST_SHORT_TTL if "reap" in (race.first, race.second) else 0
    first = race.first_action or random_action(random, IDS, operation=race.first, clock_offset=clock_offset)
    second = random_action(random, IDS, operation=race.second, clock_offset=clock_offset)
    return (first,), race.second_actions or (second,)


def random_action(
    random: Random, ids: tuple[str, ...], *, operation: str = "", clock_offset: int = 0
) -> ClientAction:
    """Return a random action, or a random action of this operation."""
    operation = operation or random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return ClientAction(
        operation=operation,
        ids=tuple(random.choices(ids, (4, *(1 for _ in ids[1:])), k=random.choice((1, 1, 1, 2)))),
        nth_newest=random.choice((0, 0, 0, 1, 2)),
        lease=random.choice((0, 0, 0, 1, 1, 2)),
        settle_as=random.choice(list(SETTLE_ACTIONS)),
        conflict=random.randrange(len(CONFLICT_OPTIONS)),
        data=random.randrange(len(JOB_DATA)),
        delay=random.choice((0, 0, 0, 5)),
        limit=random.choice((1, 10)),
        flag=random.random() < 0.5,
        clock_offset=clock_offset or random.choice((0, 0, 0, 0, PAST_SHORT_TTL)),
        configure_to=random.choice([name for name in SETTINGS_PATCHES if name not in ONLY_IN_SETUP]),
        state=random.choice(LISTED_STATES),
    )


MAX_ROUNDS = 4
#: Runs of a shrunk example, each with another seed, before it counts as passing.
SHRINK_TRIES = 20
#: Seconds spent on shrinking one failure, at most.
SHRINK_SECONDS = 20.0

RoundActions = tuple[tuple[ClientAction, ...], ...]


class ClientGroup(Protocol):
    """Several clients of one storage: threads or processes."""

    def run_round(self, programs: Sequence[Program], seed: int) -> list[ClientCall]:
        """Run one program per client, all at the same time, and return their calls."""
        ...

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        """Read the storage while all clients are idle."""
        ...


@frozen
class Example:
    """A random test case: several rounds, each with the actions of every client.

    The first round sets up jobs and leases. All clients of a round run at the same time.
    """

    seed: int
    rounds: tuple[RoundActions, ...]
    #: The place at which the first client of each round stops until the other clients are done; None for no
    #: stop.
    hold: Hold | None = None

    def shrunk(self) -> Iterator[Example]:
        """Yield every example with one round or one action removed."""
        for at in range(len(self.rounds) - 1, 0, -1):
            yield evolve(self, rounds=(*self.rounds[:at], *self.rounds[at + 1 :]))
        for at, round_actions in enumerate(self.rounds):
            for client, actions in enumerate(round_actions):
                for index in range(len(actions)):
                    fewer = (*actions[:index], *actions[index + 1 :])
                    changed = (*round_actions[:client], fewer, *round_actions[client + 1 :])
                    yield evolve(self, rounds=(*self.rounds[:at], changed, *self.rounds[at + 1 :]))


def random_example(seed: int, clients: int) -> Example:
    """Return a random example: leases and some jobs, then rounds with one or two actions per client."""
    random = Random(seed)
    rounds: list[RoundActions] = [(random_setup(random),)]
    rounds += [random_round(random, clients) for _ in range(random.randint(1, MAX_ROUNDS))]
    hold = random_hold(random) if random.random() < 0.5 else None
    return Example(seed, tuple(rounds), hold)


def race_example(seed: int, clients: int, race: Race, visit: int) -> Example:
    """Return an example whose second round is a race. `visit` is how often the race was tried before."""
    random = Random(seed)
    after = tuple((action,) for action in race.after * 2) or random_round(random, clients)
    return Example(seed, ((race.setup,), race_actions(race, random), after), hold_of_visit(random, visit))


def random_round(random: Random, clients: int) -> RoundActions:
    lengths = [random.choice((1, 1, 2)) for _ in range(clients)]
    return tuple(tuple(random_action(random, IDS) for _ in range(length)) for length in lengths)


def random_setup(random: Random) -> tuple[ClientAction, ...]:
    actions = [*GRANTS, ClientAction(operation="enqueue")]
    if random.random() < 0.5:
        changed = random.choice(("fail handler", "fail handler", "results in the log"))
        actions.append(ClientAction(operation="configure", configure_to=changed))
    if random.random() < 0.8:
        actions.append(ClientAction(operation="claim", lease=random.choice((0, 1))))
    if random.random() < 0.5:
        actions.append(ClientAction(operation="enqueue", data=1))
    if random.random() < 0.3:
        actions.append(ClientAction(operation="enqueue", ids=IDS[1:]))
    return tuple(actions)


@define
class ExampleCounts:
    """Counters of the examples run so far: their calls, and the pairs of calls that overlapped in time."""

    histories: int = 0
    calls: int = 0
    overlaps: int = 0
    undecided: int = 0
    #: Readings of the log.
    log_reads: int = 0
    #: Number of overlaps of each pair of operations, keyed like "claim beside settle".
    overlapping_pairs: dict[str, int] = field(factory=dict)

    def count(self, rounds: Sequence[Round], result: LinearizeResult) -> None:
        self.histories += 1
        self.undecided += result.undecided
        self.log_reads += len(reads_of_log(rounds))
        for calls in (round_.calls for round_ in rounds):
            self.calls += len(calls)
            for at, call in enumerate(calls):
                for other in calls[at + 1 :]:
                    if other.client != call.client and call.overlaps(other):
                        self.overlaps += 1
                        pair = " beside ".join(sorted((call.operation, other.operation)))
                        self.overlapping_pairs[pair] = self.overlapping_pairs.get(pair, 0) + 1


class ExampleRunner:
    """The runner of examples: one after the other, each in its own queue."""

    def __init__(self, clients: ClientGroup) -> None:
        self._clients = clients
        self._examples_run = 0
        #: The rounds of the newest example so far.
        self._rounds: list[Round] = []
        #: A line for each client with the verbs of the newest round.
        self._planned: list[str] = []
        self.counts = ExampleCounts()

    def run(self, example: Example) -> LawFailure | None:
        """Run an example. Return None, or a failure with the shortest failing example found."""
        try:
            rounds, result = self._run_once(example)
            self.counts.count(rounds, result)
            if result.linearizable:
                return None
            return self._shrink(example, rounds, result)
        except Exception as error:  # noqa: BLE001 - any exception of the storage is a failure
            self.counts.histories += 1
            return exception_failure(error, (*timeline(self._rounds), *self._planned))

    def _run_once(self, example: Example) -> tuple[list[Round], LinearizeResult]:
        queue = f"q{self._examples_run}"
        now = START + 10_000 * self._examples_run
        self._examples_run += 1
        rounds = self._run_rounds(example, queue, now)
        late = late_event(rounds)
        if late:
            return rounds, LinearizeResult(linearizable=False, why=late)
        return rounds, linearize(rounds, queue)

    def _run_rounds(self, example: Example, queue: str, now: int) -> list[Round]:
        state = ClientState()
        rounds = self._rounds = []
        for at, round_actions in enumerate(example.rounds):
            holds = [example.hold, *(None for _ in round_actions)]
            programs = [
                Program(actions, queue, state, now, hold)
                for actions, hold in zip(round_actions, holds, strict=False)
            ]
            self._planned = [
                f"client {number} was to call {', '.join(action.operation for action in actions)}"
                for number, actions in enumerate(round_actions, 1)
            ]
            calls = self._clients.run_round(programs, example.seed + at)
            for call in sorted(calls, key=lambda call: call.returned):
                remember(state, call)
                now = max(now, call.now)
            last = at == len(example.rounds) - 1
            rounds.append(Round(calls=calls, snapshot=self._clients.snapshot(queue, IDS, now, log=last)))
        return rounds

    def _shrink(self, example: Example, rounds: list[Round], result: LinearizeResult) -> LawFailure:
        """Remove rounds and actions while the example still fails, for at most `SHRINK_SECONDS`."""
        deadline, found = time.monotonic() + SHRINK_SECONDS, True
        while found and time.monotonic() < deadline:
            found = False
            for shrunk in example.shrunk():
                failing = self._find_failing_run(shrunk, deadline)
                if failing is not None:
                    example, (rounds, result), found = shrunk, failing, True
                    break
        return LawFailure(law="some order explains every answer", why=result.why, story=timeline(rounds))

    def _find_failing_run(
        self, example: Example, deadline: float
    ) -> tuple[list[Round], LinearizeResult] | None:
        for attempt in range(SHRINK_TRIES):
            if time.monotonic() > deadline:
                break
            rounds, result = self._run_once(evolve(example, seed=example.seed + 1000 * attempt))
            if not result.linearizable:
                return rounds, result
        return None


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
