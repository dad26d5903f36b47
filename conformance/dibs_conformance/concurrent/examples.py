"""Examples of several clients: made from a seed, played, judged, and made shorter when they fail."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from dibs_conformance.concurrent.actions import LATE, Act, Hands, Order, drawn
from dibs_conformance.concurrent.calls import Call, Look, Round
from dibs_conformance.concurrent.linearize import Verdict, woven
from dibs_conformance.concurrent.timeline import timeline
from dibs_conformance.report import Failure

#: 2026 in ms.
START = 1_767_225_600_000
IDS = ("a", "b")
ROUNDS = 4
#: How often a shorter story is played before it counts as not failing.
TRIES = 20
#: Seconds that may be spent on making a story shorter.
SHORTENING = 20.0

#: Every example begins with a long lease and a short one.
GRANTS = (Act(verb="grant"), Act(verb="grant", lease=1))

Programs = tuple[tuple[Act, ...], ...]


class Stage(Protocol):
    """Where clients play: threads or processes on one place."""

    def play(self, orders: Sequence[Order], seed: int) -> list[Call]:
        """Let each client do its program, all at once."""
        ...

    def look(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Look:
        """See everything."""
        ...


@dataclass(frozen=True)
class Score:
    """An example: rounds of a program for each client; the first only sets the stage."""

    seed: int
    rounds: tuple[Programs, ...]

    def shorter(self) -> Iterator[Score]:
        """Every score with one round, or one act, less."""
        for at in range(len(self.rounds) - 1, 0, -1):
            yield replace(self, rounds=(*self.rounds[:at], *self.rounds[at + 1 :]))
        for at, programs in enumerate(self.rounds):
            for who, acts in enumerate(programs):
                for which in range(len(acts)):
                    fewer = (*acts[:which], *acts[which + 1 :])
                    changed = (*programs[:who], fewer, *programs[who + 1 :])
                    yield replace(self, rounds=(*self.rounds[:at], changed, *self.rounds[at + 1 :]))


def composed(seed: int, clients: int, pair: tuple[str, str] | None = None) -> Score:
    """Draw an example: leases and some jobs, then rounds in which everybody does an act or two.

    With a pair of verbs, two clients begin with these, so that they meet.
    """
    random = Random(seed)
    if pair is not None:
        late = LATE if "reap" in pair else 0
        met = tuple((drawn(random, IDS, verb=verb, late=late),) for verb in pair)
        claim = Act(verb="claim", lease=1)
        return Score(seed, (((*GRANTS, Act(verb="enqueue"), claim),), met, programs(random, clients)))
    rounds: list[Programs] = [(prelude(random),)]
    rounds += [programs(random, clients) for _ in range(random.randint(1, ROUNDS))]
    return Score(seed, tuple(rounds))


def programs(random: Random, clients: int) -> Programs:
    lengths = [random.choice((1, 1, 2)) for _ in range(clients)]
    return tuple(tuple(drawn(random, IDS) for _ in range(length)) for length in lengths)


def prelude(random: Random) -> tuple[Act, ...]:
    acts = [*GRANTS, Act(verb="enqueue")]
    if random.random() < 0.8:
        acts.append(Act(verb="claim", lease=random.choice((0, 1))))
    if random.random() < 0.5:
        acts.append(Act(verb="enqueue", data=1))
    if random.random() < 0.3:
        acts.append(Act(verb="enqueue", ids=IDS[1:]))
    return tuple(acts)


@dataclass
class Tally:
    """What was played so far."""

    histories: int = 0
    calls: int = 0
    overlaps: int = 0
    undecided: int = 0
    raced: dict[str, int] = field(default_factory=dict)

    def count(self, rounds: Sequence[Round], verdict: Verdict) -> None:
        self.histories += 1
        self.undecided += verdict.undecided
        for one in rounds:
            self.calls += len(one.calls)
            for at, call in enumerate(one.calls):
                for other in one.calls[at + 1 :]:
                    if other.client != call.client and call.overlaps(other):
                        self.overlaps += 1
                        pair = " beside ".join(sorted((call.verb, other.verb)))
                        self.raced[pair] = self.raced.get(pair, 0) + 1


class Concert:
    """Plays one example after the other on a stage, each in a queue of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._played = 0
        self.tally = Tally()

    def try_one(self, score: Score) -> Failure | None:
        """Play an example; what it breaks, as the shortest story that was found."""
        rounds, verdict = self._played_once(score)
        self.tally.count(rounds, verdict)
        if verdict.kept:
            return None
        return self._shortened(score, rounds, verdict)

    def _played_once(self, score: Score) -> tuple[list[Round], Verdict]:
        queue = f"q{self._played}"
        now = START + 10_000 * self._played
        self._played += 1
        rounds = self._rounds(score, queue, now)
        return rounds, woven(rounds, queue)

    def _rounds(self, score: Score, queue: str, now: int) -> list[Round]:
        hands, rounds = Hands(), []
        for at, programs in enumerate(score.rounds):
            orders = [Order(acts, queue, hands, now) for acts in programs]
            calls = self._stage.play(orders, score.seed + at)
            for call in sorted(calls, key=lambda call: call.returned):
                hands.take(call)
                now = max(now, call.now)
            last = at == len(score.rounds) - 1
            rounds.append(Round(calls=calls, look=self._stage.look(queue, IDS, now, log=last)))
        return rounds

    def _shortened(self, score: Score, rounds: list[Round], verdict: Verdict) -> Failure:
        """Leave out what is not needed to fail, as long as there is time."""
        deadline, found = time.monotonic() + SHORTENING, True
        while found and time.monotonic() < deadline:
            found = False
            for shorter in score.shorter():
                again = self._fails(shorter, deadline)
                if again is not None:
                    score, (rounds, verdict), found = shorter, again, True
                    break
        return Failure(law="some order explains every answer", why=verdict.why, story=timeline(rounds))

    def _fails(self, score: Score, deadline: float) -> tuple[list[Round], Verdict] | None:
        for attempt in range(TRIES):
            if time.monotonic() > deadline:
                break
            rounds, verdict = self._played_once(replace(score, seed=score.seed + 1000 * attempt))
            if not verdict.kept:
                return rounds, verdict
        return None
