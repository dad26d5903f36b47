"""Clients at work while their server is killed, filled, made to forget or to refuse, and is well again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from dibs.errors import DibsError
from dibs_conformance.concurrent.actions import LARGE, LARGE_BYTES, Act, Hands, Order
from dibs_conformance.concurrent.calls import Call, Look, Round
from dibs_conformance.concurrent.examples import GRANTS, IDS, START, Programs, prelude, programs
from dibs_conformance.concurrent.linearize import woven
from dibs_conformance.concurrent.thread_clients import Troupe
from dibs_conformance.concurrent.timeline import timeline
from dibs_conformance.faults.private_servers import Station
from dibs_conformance.report import Failure, Findings
from dibs_conformance.report.findings import law_report

CLIENTS = 3
#: Seconds after which a server that is well again must have answered.
PATIENCE = 60.0
#: Within so many seconds of the beginning of a round something happens to the server.
SOON = 0.02


def nothing(_: object) -> None:
    """Do nothing."""


@dataclass
class Outage:
    """One way in which a server goes wrong."""

    law: str
    sentence: str
    fault: str
    #: What is done to it before the clients begin, while they are at work, and once they are done.
    before: Callable[[Watch], None] = nothing
    strike: Callable[[Station, Random], None] | None = None
    after: Callable[[Station], None] = nothing
    #: Whether what does not fit is among what the clients do.
    large: bool = False
    #: Whether the clients must not notice.
    unnoticed: bool = False
    #: Whether it shows in that calls are refused: else nothing was tried.
    refuses: bool = False


def kill(station: Station, random: Random) -> None:
    time.sleep(random.random() * SOON)
    station.server.kill()
    station.server.start()


def forget(station: Station, random: Random) -> None:
    for _ in range(3):
        time.sleep(random.random() * SOON / 3)
        station.forget()


RESTART = Outage(
    "accepted is kept through a restart",
    "What was answered before the server was killed is there when it is back; nothing is half done.",
    "server killed",
    strike=kill,
)
FULL = Outage(
    "a full server refuses whole",
    "What finds no room is refused and did not happen; with room again all goes on.",
    "server full",
    before=lambda watch: watch.fill_up(),
    after=lambda station: station.relieve(),
    large=True,
    refuses=True,
)
READ_ONLY = Outage(
    "a read-only server refuses whole",
    "What may not be written is refused and did not happen; all goes on once it may.",
    "server read-only",
    before=lambda watch: watch.station.forbid(),
    refuses=True,
    after=lambda station: station.allow(),
)
FORGETTING = Outage(
    "what a server forgets is told again",
    "Scripts that are flushed under way are loaded again, and no caller notices.",
    "scripts flushed",
    strike=forget,
    unnoticed=True,
)


@dataclass
class Watch:
    """Plays histories on a station, one outage in each."""

    station: Station
    stage: Troupe
    seed: int
    histories: int = 0
    calls: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    #: How many calls were refused while it lasted.
    refused: int = 0

    def play(self, outage: Outage) -> Failure | None:
        """Lead somewhere, let it go wrong under way, and see what is left; a failure with its story."""
        self.histories += 1
        random = Random(self.seed + self.histories)
        queue, now = f"q{self.histories}", START + 10_000 * self.histories
        hands, rounds = Hands(), []
        for phase in ("before", "under", "after"):
            if phase == "under":
                outage.before(self)
            orders = [Order(acts, queue, hands, now) for acts in self._programs(phase, outage, random)]
            calls = self.stage.play(orders, self.seed, beside=self._strike(phase, outage, random))
            if phase == "under":
                outage.after(self.station)
                self._count(outage, calls)
            for call in sorted(calls, key=lambda call: call.returned):
                hands.take(call)
                now = max(now, call.now)
            rounds.append(Round(calls=calls, look=self._look(queue, now, log=phase == "after")))
        return self._judged(outage, queue, rounds)

    def _programs(self, phase: str, outage: Outage, random: Random) -> Programs:
        """What the clients do; afterwards from new leases on."""
        if phase == "before":
            return (prelude(random),)
        drawn = programs(random, CLIENTS)
        if phase == "after":
            return tuple((*GRANTS, *acts) for acts in drawn)
        return tuple((Act(verb="enqueue", data=LARGE), *acts) for acts in drawn) if outage.large else drawn

    def _strike(self, phase: str, outage: Outage, random: Random) -> Callable[[], None] | None:
        strike = outage.strike if phase == "under" else None
        return None if strike is None else lambda: strike(self.station, random)

    def _count(self, outage: Outage, calls: list[Call]) -> None:
        self.faults[outage.fault] = self.faults.get(outage.fault, 0) + 1
        self.refused += sum(call.fate == "refused" for call in calls)

    def _look(self, queue: str, now: int, *, log: bool) -> Look:
        """See everything, twice alike, as soon as the server answers."""
        end = time.monotonic() + PATIENCE
        seen: Look | None = None
        while True:
            try:
                again = self.stage.look(queue, IDS, now, log=log)
                if again == seen:
                    return again
                seen = again
            except DibsError:
                if time.monotonic() > end:
                    raise

    def _judged(self, outage: Outage, queue: str, rounds: list[Round]) -> Failure | None:
        self.calls += sum(len(one.calls) for one in rounds)
        noticed = [call for call in rounds[1].calls if call.fate in ("unknown", "refused")]
        if outage.unnoticed and noticed:
            why = f"{noticed[0].verb} was {noticed[0].fate}: {noticed[0].answer}"
            return Failure(law=outage.law, why=why, story=timeline(rounds))
        verdict = woven(rounds, queue)
        return None if verdict.kept else Failure(law=outage.law, why=verdict.why, story=timeline(rounds))

    def findings(self, outage: Outage, failure: Failure | None) -> Findings:
        met = self.refused if outage.refuses else self.faults.get(outage.fault, 0)
        law = law_report(outage.law, "4.1, 4.7", outage.sentence, met, broken=failure is not None)
        return Findings(
            histories=self.histories,
            events=self.calls,
            faults=dict(self.faults),
            laws=(law,),
            failures=(failure,) if failure is not None else (),
        )

    def fill_up(self) -> None:
        """Fill the server, and enqueue large jobs until one is refused."""
        self.station.fill()
        for number in range(2 + self.station.room // LARGE_BYTES):
            order = Order((Act(verb="enqueue", ids=(f"{number}",), data=LARGE),), "full", Hands(), START)
            [call] = self.stage.play([order], self.seed)
            if call.fate == "refused":
                return
