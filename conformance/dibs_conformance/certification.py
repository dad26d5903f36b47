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
from collections.abc import Iterable
from importlib.metadata import version
from math import isnan

from dibs.errors import Refused
from dibs.storage.capabilities import Capabilities
from dibs_conformance.levels import LEVELS
from dibs_conformance.report import LEVEL_TITLES, CapabilityReport, Gap, LevelReport, Report
from dibs_conformance.report.findings import level_verdict
from dibs_conformance.report.values import Findings, untrue
from dibs_conformance.sequential.capabilities import probe_capabilities
from dibs_conformance.sequential.session import Progress
from dibs_conformance.target import LevelPlan, Locations, LoopRunner, OpenStorage


def certify(
    target: str | OpenStorage,
    level: str = "L0",
    budget: float = 60,
    seed: int | None = None,
    *,
    examples: int | None = None,
    steps: int = 50,
    progress: Progress = lambda _: None,
) -> Report:
    """Hold a storage against the contract for `budget` seconds, or for `examples` histories on each level.

    `target` is a URL, of which only places of the kit's own are touched, or a picklable function
    `open_storage(place, clock)`. The levels up to the one asked for share the budget and are reported
    apart; the first that breaks is the last that runs. A failure comes with the shortest story that was
    found for it. Raises Refused for a level there is not, a budget or a number of histories that is none.
    """
    check_level(level)
    check_effort(budget, examples)
    first = random.randrange(2**32) if seed is None else seed
    locations = Locations(target)
    try:
        return Certification(locations, level, first, budget).report(examples, steps, progress)
    finally:
        locations.clear()


def check_level(level: str) -> None:
    if level in LEVELS:
        return
    planned = f"level {level} is not built yet" if level in LEVEL_TITLES else f"no level {level!r}"
    raise Refused(f"{planned}; there is {', '.join(LEVELS)}", field="level")


def check_effort(budget: float, examples: int | None) -> None:
    """Refuse what no run could spend. None of it at all is taken, and certifies nothing."""
    if isnan(budget) or budget < 0:
        raise Refused(f"budget is {budget}; it must be a number of seconds, 0 or more", field="budget")
    if examples is not None and examples < 0:
        raise Refused(
            f"examples is {examples}; it must be a number of histories, 0 or more", field="examples"
        )


class Certification:
    """One run over one target."""

    def __init__(self, locations: Locations, level: str, seed: int, budget: float) -> None:
        self._locations, self._level, self._seed = locations, level, seed
        self._began = time.monotonic()
        self._ends = self._began + budget

    def report(self, examples: int | None, steps: int, progress: Progress) -> Report:
        claims, durability, found = self._ask_powers()
        levels: list[LevelReport] = []
        for name in names_up_to(self._level):
            plan = LevelPlan(
                locations=self._locations,
                claims=claims,
                seed=self._seed,
                budget=self._share(name),
                examples=examples,
                steps=steps,
                progress=progress,
                untested=untested_capabilities(found),
            )
            broken = any(level.verdict == "broken" for level in levels)
            levels.append(not_run(name) if broken else run_level(name, plan))
        reached = highest_reached(levels)
        return Report(
            target=self._locations.name,
            level=self._level,
            certified=reached == self._level and not untrue(found),
            reached=reached,
            seed=self._seed,
            seconds=round(time.monotonic() - self._began, 3),
            durability=durability,
            capabilities=found,
            levels=tuple(levels),
            kit=f"dibs {version('dibs')}",
        )

    def _ask_powers(self) -> tuple[Capabilities, str, tuple[CapabilityReport, ...]]:
        runner = LoopRunner()
        try:
            claims, durability, found = runner.run(probe_capabilities(self._locations))
            return claims, durability, tuple(found)
        finally:
            runner.close()

    def _share(self, name: str) -> float:
        """What is left of the budget, in equal parts for this level and those above it."""
        names = names_up_to(self._level)
        return max(0.0, self._ends - time.monotonic()) / (len(names) - names.index(name))


def untested_capabilities(probe_capabilities: Iterable[CapabilityReport]) -> tuple[Gap, ...]:
    """The powers that are claimed and that nobody could try."""
    claimed = (power for power in probe_capabilities if power.claimed and power.found is None)
    return tuple(Gap(name=power.name, why=power.note or "it could not be tried") for power in claimed)


def names_up_to(level: str) -> list[str]:
    names = list(LEVELS)
    return names[: names.index(level) + 1]


def run_level(name: str, plan: LevelPlan) -> LevelReport:
    began = time.monotonic()
    found = LEVELS[name](plan)
    return report_of(name, found, round(time.monotonic() - began, 3))


def report_of(name: str, found: Findings, seconds: float) -> LevelReport:
    fields = {field: getattr(found, field) for field in Findings.__struct_fields__}
    return LevelReport(
        name=name, title=LEVEL_TITLES[name], verdict=level_verdict(found), seconds=seconds, **fields
    )


def not_run(name: str) -> LevelReport:
    return LevelReport(name=name, title=LEVEL_TITLES[name], verdict="not run")


def highest_reached(levels: list[LevelReport]) -> str:
    """The last of the unbroken row of reached levels from the lowest."""
    reached = ""
    for level in levels:
        if level.verdict != "reached":
            break
        reached = level.name
    return reached
