"""The kit's door: one call that tells whether a storage keeps the contract.

    report = certify("file:./scratch")
    report = certify(open_storage)          # a function (place, clock) -> async context manager of Storage

A test for a storage of one's own is three lines:

    def test_my_storage_keeps_the_contract():
        report = certify(open_my_storage)
        assert report.certified, report.text()
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable

from dibs.errors import Refused
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage
from dibs_conformance.examples import Progress, run_examples
from dibs_conformance.laws import LAWS, Law
from dibs_conformance.pairs import Judges
from dibs_conformance.powers import powers
from dibs_conformance.refusals import wrong_verdicts, wrongly_refused
from dibs_conformance.report import CapabilityReport, Failure, LawReport, Report, Verdict
from dibs_conformance.story import StoryLines
from dibs_conformance.target import Bridge, OpenStorage, Places
from dibs_conformance.trial import Trial

#: Tries some inputs; returns how many, and what was wrong.
Asking = Callable[[Storage], Awaitable[tuple[int, list[str]]]]

LEVELS = ("L0",)
PLANNED = ("L1", "L2", "L3")

REFUSES = (
    "bad input is refused whole",
    "4.8",
    "Every value beyond a limit is refused before anything is written.",
)
TAKES = (
    "what is at a limit is taken",
    "4, Limits",
    "A value exactly at its limit is accepted, and kept as it was.",
)


def certify(
    target: str | OpenStorage,
    level: str = "L0",
    budget: float = 60,
    seed: int | None = None,
    *,
    examples: int | None = None,
    steps: int = 50,
    progress: Progress | None = None,
) -> Report:
    """Hold a storage against the contract for `budget` seconds, or for a number of examples.

    `target` is a URL, of which only places of the kit's own are touched, or a picklable function
    `open_storage(place, clock)`. A failure comes with the shortest story that was found for it.
    """
    check_level(level)
    first = random.randrange(2**32) if seed is None else seed
    run = Certification(Places(target), first, steps)
    try:
        return run.report(level, budget, examples, progress or (lambda _: None))
    finally:
        run.close()


def check_level(level: str) -> None:
    if level in PLANNED:
        raise Refused(f"level {level} is not built yet; there is {', '.join(LEVELS)}", field="level")
    if level not in LEVELS:
        raise Refused(f"no level {level!r}; there is {', '.join(LEVELS)}", field="level")


class Certification:
    """One run over one target."""

    def __init__(self, places: Places, seed: int, steps: int) -> None:
        self._places, self._seed, self._steps = places, seed, steps
        self._bridge = Bridge()
        self._laws: tuple[Law, ...] = tuple(law() for law in LAWS)
        self._failures: list[Failure] = []

    def close(self) -> None:
        self._bridge.close()
        self._places.clear()

    def report(self, level: str, budget: float, examples: int | None, progress: Progress) -> Report:
        began = time.monotonic()
        claims, durability, found = self._bridge.run(powers(self._places))
        self._failures += untrue(found)
        inputs = self._inputs() if claims.manual_clock else [not_tried(*REFUSES), not_tried(*TAKES)]
        left = budget - (time.monotonic() - began)
        trial = self._trial(claims)
        if claims.manual_clock:
            self._play(trial, left, examples, progress)
            if not trial.examples and not self._failures:
                why = f"no example fitted into {budget:g} s: give a larger budget"
                self._failures.append(Failure(law="budget", why=why))
        else:
            self._failures.append(
                Failure(law="manual_clock", why="level L0 needs a storage that takes the time")
            )
        return Report(
            target=self._places.name,
            level=level,
            certified=not self._failures,
            seed=self._seed,
            examples=trial.examples,
            steps=self._steps,
            calls=trial.calls,
            seconds=round(time.monotonic() - began, 3),
            durability=durability,
            laws=(*map(self._law, self._laws), *inputs),
            capabilities=tuple(found),
            failures=tuple(self._failures),
        )

    def _trial(self, claims: Capabilities) -> Trial:
        judges = Judges(self._laws, StoryLines())
        return Trial(self._places, judges, self._bridge, claims.durable, claims.cross_queue)

    def _play(self, trial: Trial, budget: float, examples: int | None, progress: Progress) -> None:
        failure = run_examples(
            trial,
            first_seed=self._seed,
            examples=examples,
            budget=budget,
            steps=self._steps,
            progress=progress,
        )
        if failure is not None:
            self._failures.append(failure)

    def _inputs(self) -> list[LawReport]:
        """Bad input and input at the limits, each in a place of its own."""
        return [self._input(REFUSES, wrong_verdicts), self._input(TAKES, wrongly_refused)]

    def _input(self, law: tuple[str, str, str], ask: Asking) -> LawReport:
        met, wrong = self._bridge.run(in_new_place(self._places, ask))
        self._failures += [Failure(law=law[0], why=text) for text in wrong]
        verdict: Verdict = "broken" if wrong else "kept"
        return LawReport(name=law[0], section=law[1], sentence=law[2], met=met, verdict=verdict)

    def _law(self, law: Law) -> LawReport:
        broken = any(failure.law == law.name for failure in self._failures)
        verdict: Verdict = "broken" if broken else "kept" if law.met else "not tested"
        return LawReport(
            name=law.name, section=law.section, sentence=law.sentence, met=law.met, verdict=verdict
        )


async def in_new_place(places: Places, ask: Asking) -> tuple[int, list[str]]:
    async with places.open(places.new(), "manual") as storage:
        return await ask(storage)


def not_tried(name: str, section: str, sentence: str) -> LawReport:
    return LawReport(name=name, section=section, sentence=sentence, met=0, verdict="not tested")


def untrue(found: list[CapabilityReport]) -> list[Failure]:
    """A power that is claimed and was not found."""
    return [
        Failure(law=power.name, why=f"claimed, and not found. {power.note}")
        for power in found
        if not power.holds
    ]
