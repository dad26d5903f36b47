"""L0, one call at a time: the machine plays a storage and the oracle side by side under a manual clock.

The tour is first, then what is asked directly, then chance.
"""

from __future__ import annotations

import time

from dibs_conformance.laws import LAWS, Law
from dibs_conformance.levels.level import Given, law_report
from dibs_conformance.report import Failure, Findings, Gap, LawReport
from dibs_conformance.report.story import StoryLines
from dibs_conformance.sequential.examples import run_examples, run_tour
from dibs_conformance.sequential.lockstep import Judges
from dibs_conformance.sequential.probes import ASKS, Ask
from dibs_conformance.sequential.trial import Trial
from dibs_conformance.target import Bridge, Places


def in_order(given: Given) -> Findings:
    """Play examples until the budget or their number is used up."""
    if not given.claims.manual_clock:
        why = "it needs a storage that can be opened with clock='manual'"
        return Findings(untested=(Gap(name="the machine against the oracle", why=why),))
    bridge = Bridge()
    try:
        return Sequence(given, bridge).findings()
    finally:
        bridge.close()


class Sequence:
    """One run of L0."""

    def __init__(self, given: Given, bridge: Bridge) -> None:
        self._given, self._bridge = given, bridge
        self._ends = time.monotonic() + given.budget
        self._laws: tuple[Law, ...] = tuple(law() for law in LAWS)
        self._failures: list[Failure] = []

    def findings(self) -> Findings:
        trial = self._trial()
        self._keep(run_tour(trial))
        on_tour, room = trial.examples, True
        # A storage that is not finished hears of its next verb, and not of limits.
        inputs = [self._ask(ask) for ask in ASKS if not self._failures]
        if not self._failures:
            self._keep(self._play(trial))
            room = trial.examples > on_tour
        return Findings(
            histories=trial.examples,
            events=trial.calls,
            laws=(*map(self._law, self._laws), *inputs),
            failures=tuple(self._failures),
            untested=(*self._given.untried, *(() if room else (no_room(self._given.budget),))),
        )

    def _keep(self, failure: Failure | None) -> None:
        if failure is not None:
            self._failures.append(failure)

    def _trial(self) -> Trial:
        claims = self._given.claims
        judges = Judges(self._laws, StoryLines())
        return Trial(self._given.places, judges, self._bridge, claims.durable, claims.cross_queue)

    def _play(self, trial: Trial) -> Failure | None:
        return run_examples(
            trial,
            first_seed=self._given.seed,
            examples=self._given.examples,
            budget=self._ends - time.monotonic(),
            steps=self._given.steps,
            progress=self._given.progress,
        )

    def _ask(self, ask: Ask) -> LawReport:
        met, wrong = self._bridge.run(in_new_place(self._given.places, ask))
        self._failures += [Failure(law=ask.name, why=text) for text in wrong]
        return law_report(ask.name, ask.section, ask.sentence, met, broken=bool(wrong))

    def _law(self, law: Law) -> LawReport:
        broken = any(failure.law == law.name for failure in self._failures)
        return law_report(law.name, law.section, law.sentence, law.met, broken=broken)


async def in_new_place(places: Places, ask: Ask) -> tuple[int, list[str]]:
    async with places.open(places.new(), "manual") as storage:
        return await ask.ask(storage)


def no_room(budget: float) -> Gap:
    return Gap(
        name="the machine against the oracle", why=f"no example fitted into {budget:.3g} s: larger budget"
    )
