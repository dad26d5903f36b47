"""What is under way when something goes wrong: an act for each thing a verb may do, and what leads there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from dibs_conformance.concurrent.actions import LATE, Act, Hands, Order
from dibs_conformance.concurrent.calls import Call, Look, Round
from dibs_conformance.concurrent.examples import GRANTS, IDS, START
from dibs_conformance.concurrent.linearize import woven
from dibs_conformance.concurrent.timeline import timeline
from dibs_conformance.report import Failure, Findings, LawReport
from dibs_conformance.report.findings import law_report
from dibs_conformance.target import LevelPlan

P = TypeVar("P")

ENQUEUE, CLAIM = Act(verb="enqueue"), Act(verb="claim")
RUNNING = (*GRANTS, ENQUEUE, CLAIM)
BESIDE = (*RUNNING, Act(verb="enqueue", data=1))
#: The run is under the lease that ends soon.
SHORT = (*GRANTS, ENQUEUE, Act(verb="claim", lease=1))


@dataclass(frozen=True)
class Scene:
    """What leads there, and what is under way."""

    before: tuple[Act, ...]
    act: Act


SCENES: dict[str, Scene] = {
    "enqueue": Scene(GRANTS, Act(verb="enqueue", ids=IDS, flag=True, pick=1)),
    "update": Scene((*GRANTS, ENQUEUE), Act(verb="enqueue", data=1)),
    "block": Scene(RUNNING, Act(verb="enqueue", ids=("a", "a"), data=1)),
    "claim": Scene((*GRANTS, Act(verb="enqueue", ids=IDS)), Act(verb="claim")),
    "complete": Scene(BESIDE, Act(verb="settle", ids=IDS, flag=True)),
    "fail": Scene(BESIDE, Act(verb="settle", how="fail, handled")),
    "retry": Scene(BESIDE, Act(verb="settle", how="retry later")),
    "release": Scene(RUNNING, Act(verb="settle", how="release")),
    "settle_and_claim": Scene(BESIDE, Act(verb="settle_and_claim")),
    "hand off": Scene(RUNNING, Act(verb="settle", how="hand off")),
    "finish": Scene((*RUNNING, Act(verb="settle", how="hand off")), Act(verb="finish")),
    "grant": Scene(GRANTS, Act(verb="grant")),
    "renew": Scene(SHORT, Act(verb="renew", lease=1)),
    "drop": Scene(BESIDE, Act(verb="drop")),
    "reap": Scene((*SHORT, ENQUEUE), Act(verb="reap", late=LATE)),
    "cancel": Scene(BESIDE, Act(verb="cancel", flag=True)),
    "amend": Scene(BESIDE, Act(verb="amend")),
    "retry_failed": Scene((*RUNNING, Act(verb="settle", how="fail")), Act(verb="retry_failed")),
    "forget": Scene(RUNNING, Act(verb="forget")),
    "report": Scene(RUNNING, Act(verb="report")),
}

#: What the others do afterwards: the place has to go on working.
AFTERWARDS = (Act(verb="reap", late=LATE), CLAIM, Act(verb="settle"), Act(verb="enqueue", data=2))


class Survivor:
    """Who is there before and after: it does what it is told, and sees everything."""

    #: How many it was there for: each has a queue of its own, and a later time.
    histories = 0

    def does(self, order: Order, patience: float) -> list[Call] | None:
        """Do it; None when it is not done in time. It is done later then, before anything else."""
        raise NotImplementedError

    def rest(self) -> list[Call]:
        """What was not done in time, once it is."""
        raise NotImplementedError

    def look(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Look:
        raise NotImplementedError


@dataclass
class History:
    """One example: what leads there, what went wrong, what was there afterwards."""

    survivor: Survivor
    queue: str
    now: int
    hands: Hands = field(default_factory=Hands)
    rounds: list[Round] = field(default_factory=list)

    def order(self, acts: Sequence[Act]) -> Order:
        return Order(tuple(acts), self.queue, self.hands, self.now)

    def begin(self, scene: Scene) -> Order:
        """Lead there; what is to be under way next."""
        self._done(self.survivor.does(self.order(scene.before), PATIENCE) or [])
        return self.order((scene.act,))

    def add(self, calls: list[Call]) -> None:
        """What was under way, and whatever overlapped it."""
        self._done(calls)

    def end(self) -> None:
        """Go on working, and see everything."""
        calls = self.survivor.does(self.order(AFTERWARDS), PATIENCE)
        if calls is None:
            raise TimeoutError(f"afterwards nobody was answered for {PATIENCE:.0f} s")
        self._done(calls, log=True)

    def _done(self, calls: list[Call], *, log: bool = False) -> None:
        for call in sorted(calls, key=lambda call: call.returned):
            self.hands.take(call)
            self.now = max(self.now, call.now)
        self.rounds.append(Round(calls=calls, look=self._look(log=log)))

    def _look(self, *, log: bool) -> Look:
        """See everything, twice alike: what has no reply yet may take effect while we look."""
        seen = self.survivor.look(self.queue, IDS, self.now, log=log)
        while True:
            again = self.survivor.look(self.queue, IDS, self.now, log=log)
            if again == seen:
                return seen
            seen = again

    def judged(self, law: str) -> Failure | None:
        verdict = woven(self.rounds, self.queue)
        return None if verdict.kept else Failure(law=law, why=verdict.why, story=timeline(self.rounds))


#: Seconds in which a call that nothing stands in the way of has to return.
PATIENCE = 60.0


@dataclass
class Way(Generic[P]):
    """One way of going wrong: its law, and what was seen of it so far."""

    law: str
    sentence: str
    #: What each fault is called, for the report.
    fault: str
    survivor: Survivor
    queues: str
    seed: int
    faults: dict[str, int] = field(default_factory=dict)
    histories: int = 0
    calls: int = 0
    failure: Failure | None = None
    fewest: int = len(SCENES)

    def history(self) -> History:
        self.histories += 1
        self.survivor.histories += 1
        number = self.survivor.histories
        return History(self.survivor, f"{self.queues}{number}", START + 10_000 * number)

    def count(self, fault: str = "") -> None:
        fault = fault or self.fault
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def judge(self, history: History) -> None:
        self.calls += sum(len(one.calls) for one in history.rounds)
        self.failure = self.failure or history.judged(self.law)

    def try_all(self, points: Sequence[P], try_one: Callable[[P], None], until: float) -> None:
        """Try points in an order drawn from the seed, until time is up, none is left or one fails.

        Whatever the time, `fewest` are tried: every scene once, or as many as were asked for.
        """
        order = spread(points, self.seed)
        for done, point in enumerate(order):
            if self.failure is not None or (time.monotonic() > until and done >= self.fewest):
                break
            try_one(point)

    def findings(self) -> Findings:
        met = self.faults.get(self.fault, 0)
        law: LawReport = law_report(self.law, "4.1, 4.7", self.sentence, met, broken=self.failure is not None)
        return Findings(
            histories=self.histories,
            events=self.calls,
            faults=dict(self.faults),
            laws=(law,),
            failures=(self.failure,) if self.failure is not None else (),
        )


def fewest(plan: LevelPlan) -> int:
    """How many points are tried at least."""
    return max(len(SCENES), plan.examples or 0)


def spread(points: Sequence[P], seed: int) -> list[P]:
    """Shuffle points; of scenes and moments, every scene comes once before any comes again."""
    order = list(points)
    Random(seed).shuffle(order)
    seen: Counter[object] = Counter()
    ranks: list[int] = []
    for point in order:
        scene = point[0] if isinstance(point, tuple) else point
        ranks.append(seen[scene])
        seen[scene] += 1
    return [order[at] for at in sorted(range(len(order)), key=ranks.__getitem__)]


def points(sizes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Every moment of every scene."""
    for name, size in sizes.items():
        yield from ((name, moment) for moment in range(1, size + 1))
