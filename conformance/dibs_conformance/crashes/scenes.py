"""The scenes of the crash tests, the campaigns that run them, and their clients.

A scene prepares a situation, and then runs one action that a fault disturbs. There is a scene for each effect
an operation can have, for example an enqueue that creates, updates or blocks a job. The victim process is
killed, stopped or given errors. The survivor has its own storage object at the victim's location. It prepares
the scenes, and recovers after faults.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from typing import Generic, TypeVar

from attrs import define, field

from dibs_conformance.concurrent.client import take_snapshot
from dibs_conformance.concurrent.linearize import linearize, timeline
from dibs_conformance.concurrent.process_clients import ProcessClient
from dibs_conformance.concurrent.thread_clients import ThreadClient
from dibs_conformance.report import Findings, LawFailure, LawReport, SkippedTest
from dibs_conformance.report.exceptions import StorageFailed, exception_failure
from dibs_conformance.report.values import law_report
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs import VERBS, remember
from dibs_conformance.verbs.actions import (
    IDS,
    START,
    ClientAction,
    ClientCall,
    ClientState,
    Program,
    Round,
    Snapshot,
    read_actions,
)
from dibs_conformance.verbs.verb import Scene

P = TypeVar("P")
#: The sections of the contract about calls that a fault interrupts.
SECTION = "4.1; 4.7; 4, Durability"

#: All scenes by name. The module of the disturbed verb has the scene (dibs_conformance/verbs).
SCENES: dict[str, Scene] = {name: scene for verb in VERBS.values() for name, scene in verb.scenes.items()}

#: Actions of another client after the fault, which show that the storage still works.
RECOVERY_ACTIONS = read_actions("reap late; claim; settle; enqueue data=2")


class Survivor:
    """A client that the fault does not hit. It prepares scenes, recovers and takes snapshots."""

    #: Number of histories so far. Each history has its own queue and a later time.
    histories = 0
    #: The rounds of the newest history so far.
    newest_rounds: Sequence[Round] = ()

    def run(self, program: Program, timeout: float) -> list[ClientCall] | None:
        """Run a program and return its calls, or None if it takes longer than `timeout` seconds.

        After a timeout the program goes on, and the next program waits for its end.
        """
        raise NotImplementedError

    def wait_late(self) -> list[ClientCall]:
        """Return the calls of a program that exceeded its timeout, once it is done."""
        raise NotImplementedError

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        raise NotImplementedError


@define
class FaultHistory:
    """The rounds of one history with a fault: setup, disturbed action, recovery."""

    survivor: Survivor
    queue: str
    now: int
    state: ClientState = field(factory=ClientState)
    rounds: list[Round] = field(factory=list)

    def program(self, actions: Sequence[ClientAction]) -> Program:
        return Program(tuple(actions), self.queue, self.state, self.now)

    def run_setup(self, scene: Scene) -> Program:
        """Run the setup, and return the program of the action to disturb."""
        self._add_round(self.survivor.run(self.program(scene.setup), TIMEOUT) or [])
        return self.program((scene.action,))

    def add(self, calls: list[ClientCall]) -> None:
        """Add the calls of the disturbed action, and calls that overlapped it."""
        self._add_round(calls)

    def finish(self) -> None:
        """Run the recovery actions and take the last snapshot."""
        calls = self.survivor.run(self.program(RECOVERY_ACTIONS), TIMEOUT)
        if calls is None:
            raise TimeoutError(f"after the fault, a client got no answer for {TIMEOUT:.0f} s")
        self._add_round(calls, log=True)

    def _add_round(self, calls: list[ClientCall], *, log: bool = False) -> None:
        for call in sorted(calls, key=lambda call: call.returned):
            remember(self.state, call)
            self.now = max(self.now, call.now)
        self.rounds.append(Round(calls=calls, snapshot=self._stable_snapshot(log=log)))

    def _stable_snapshot(self, *, log: bool) -> Snapshot:
        """Read until two snapshots are equal: an unanswered call may take effect between them."""
        previous = self.survivor.snapshot(self.queue, IDS, self.now, log=log)
        while True:
            latest = self.survivor.snapshot(self.queue, IDS, self.now, log=log)
            if latest == previous:
                return latest
            previous = latest

    def check(self, law: str) -> LawFailure | None:
        """Return a failure if no order of the calls explains the history.

        With an unanswered call, read the storage once more before reporting: Postgres makes a commit
        visible shortly before it releases the lock that hides the new log entries from readers.
        """
        result = linearize(self.rounds, self.queue)
        if not result.linearizable and self._has_unanswered_call():
            time.sleep(LATE_ENTRIES)
            self.rounds[-1].snapshot = self._stable_snapshot(log=True)
            result = linearize(self.rounds, self.queue)
        return (
            None if result.linearizable else LawFailure(law=law, why=result.why, story=timeline(self.rounds))
        )

    def _has_unanswered_call(self) -> bool:
        return any(call.completion == "unknown" for round_ in self.rounds for call in round_.calls)


#: Seconds in which an unblocked call must return.
TIMEOUT = 60.0
#: Seconds after which the log entries of a committed call are visible, also on a busy machine.
LATE_ENTRIES = 0.5


@define
class FaultCampaign(Generic[P]):
    """The tests of one kind of fault: its law, its counts and its first failure."""

    law: str
    sentence: str
    #: Name of the fault in the report.
    fault: str
    survivor: Survivor
    queue_prefix: str
    seed: int
    faults: dict[str, int] = field(factory=dict)
    histories: int = 0
    calls: int = 0
    failure: LawFailure | None = None
    min_points: int = len(SCENES)
    #: The number of points that there are, and the number of those that were tested.
    known_points: int = 0
    tested_points: int = 0

    def new_history(self) -> FaultHistory:
        self.histories += 1
        self.survivor.histories += 1
        number = self.survivor.histories
        history = FaultHistory(self.survivor, f"{self.queue_prefix}{number}", START + 10_000 * number)
        self.survivor.newest_rounds = history.rounds
        return history

    def count_fault(self, fault: str = "") -> None:
        fault = fault or self.fault
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def check(self, history: FaultHistory) -> None:
        self.calls += sum(len(round_.calls) for round_ in history.rounds)
        self.failure = self.failure or history.check(self.law)

    def run(self, points: Sequence[P], try_point: Callable[[P], None], until: float) -> None:
        """Test points in an order drawn from the seed, until the deadline `until` or the first failure.

        At least `min_points` are tested, even after the deadline.
        """
        self.known_points = len(points)
        for done, point in enumerate(scenes_first(points, self.seed)):
            if self.failure is not None or (time.monotonic() > until and done >= self.min_points):
                break
            try_point(point)
            self.tested_points += 1

    def findings(self) -> Findings:
        met = self.faults.get(self.fault, 0)
        law: LawReport = law_report(self.law, SECTION, self.sentence, met, broken=self.failure is not None)
        return Findings(
            histories=self.histories,
            events=self.calls,
            faults=dict(self.faults),
            laws=(law,),
            failures=(self.failure,) if self.failure is not None else (),
            partly=self._untested_points(),
        )

    def _untested_points(self) -> tuple[SkippedTest, ...]:
        """Return one entry with the number of tested points, if the budget ended before all were tested.

        Return () after a failure.
        """
        if self.failure is not None or self.tested_points >= self.known_points:
            return ()
        why = f"{self.tested_points:,} of {self.known_points:,} points tried, then the budget ended"
        return (SkippedTest(name=self.fault, why=why),)


def min_points(plan: LevelPlan) -> int:
    """Return how many points to test at least: one per scene, or `plan.examples` if that is more."""
    return max(len(SCENES), plan.examples or 0)


def scenes_first(points: Sequence[P], seed: int) -> list[P]:
    """Return the points in random order, sorted so that each scene comes once before a scene comes twice."""
    shuffled = list(points)
    Random(seed).shuffle(shuffled)
    seen: Counter[object] = Counter()
    ranks: list[int] = []
    for point in shuffled:
        scene = point[0] if isinstance(point, tuple) else point
        ranks.append(seen[scene])
        seen[scene] += 1
    return [shuffled[at] for at in sorted(range(len(shuffled)), key=ranks.__getitem__)]


def points(sizes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield (scene, number) for the numbers 1 to the size of each scene."""
    for name, size in sizes.items():
        yield from ((name, number) for number in range(1, size + 1))


#: Actions that a new process runs once before its lines and system calls are counted.
WARM_UP = (*SCENES["settle_and_claim"].setup, SCENES["settle_and_claim"].action)


class Victim:
    """The current victim process at a location. A new process is started when the old one was discarded."""

    def __init__(self, plan: LevelPlan, location: str) -> None:
        self._target, self._location = plan.locations.target, location
        self._process: ProcessClient | None = None

    @property
    def is_running(self) -> bool:
        """True if a process was started and not discarded. It may be dead."""
        return self._process is not None

    @property
    def died(self) -> bool:
        """True if the current process is dead."""
        return self._process is not None and self._process.died

    def process(self) -> ProcessClient:
        """Return the current process, or start one."""
        if self._process is None:
            self._process = ProcessClient(self._target, self._location, "vic")
            # First calls do extra work, for example load scripts. It must not count as part of a scene.
            self._process.start(Program(WARM_UP, "warm", ClientState(), START))
            self._process.wait()
        return self._process

    def discard(self) -> None:
        """Close the current process. The next `process()` starts a new one."""
        if self._process is not None:
            self._process.close()
        self._process = None


class ThreadSurvivor(Survivor):
    """A survivor that runs its programs one after the other in one thread."""

    def __init__(self, locations: Locations, location: str) -> None:
        self.client = ThreadClient("ann")
        self.client.wait_for(self.client.submit(lambda: self.client.open(locations, location)))
        self._late_calls: Future[list[ClientCall]] | None = None

    def run(self, program: Program, timeout: float) -> list[ClientCall] | None:
        future = self.client.submit(lambda: self.client.run_program(program, time.monotonic))
        if timeout >= TIMEOUT:
            return self.client.wait_for(future)
        try:
            return future.result(timeout)
        except TimeoutError:
            self._late_calls = future
            return None

    def wait_late(self) -> list[ClientCall]:
        late, self._late_calls = self._late_calls, None
        return [] if late is None else self.client.wait_for(late)

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        client = self.client
        return client.wait_for(
            client.submit(lambda: client.run(take_snapshot(client.storage, queue, ids, now, log=log)))
        )

    def close(self) -> None:
        self.client.close()


@contextmanager
def thread_survivor(locations: Locations, location: str) -> Iterator[ThreadSurvivor]:
    """Open a survivor at a location, and close it at the end.

    An exception of the storage becomes a StorageFailed with the calls of the newest history.
    """
    opened = ThreadSurvivor(locations, location)
    try:
        yield opened
    except Exception as error:  # noqa: BLE001 - the storage may raise anything
        raise StorageFailed(exception_failure(error, timeline(opened.newest_rounds))) from None
    finally:
        opened.close()
