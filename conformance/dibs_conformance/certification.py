"""Certification: tests a storage against the contract, level by level, and returns a report.

    report = certify("file:./scratch")
    report = certify(open_storage)  # a function (location, clock) -> async context manager of Storage

The docstring of `certify` shows a test for a third-party storage.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from math import isnan

from attrs import field, frozen
from msgspec import structs

from dibs.errors import ConfigurationError, Refused
from dibs.storage.capabilities import Capabilities
from dibs_conformance.levels import LEVELS
from dibs_conformance.loop_runner import LIMITS, LoopRunner, without_exits
from dibs_conformance.report import (
    LEVEL_TITLES,
    CapabilityReport,
    CertificationReport,
    Findings,
    LevelReport,
    SkippedTest,
)
from dibs_conformance.report.exceptions import StorageFailed, exception_failure
from dibs_conformance.report.report import without_passwords
from dibs_conformance.report.values import false_claims, level_verdict
from dibs_conformance.sequential.capabilities import probe_capabilities
from dibs_conformance.target import LevelPlan, Locations, OpenStorage, Progress

#: Errors that say what is wrong with the arguments of `certify`. They are raised, and not reported.
KNOWN_ERRORS = (Refused, ConfigurationError, NotImplementedError)
INTERRUPTED = "the user interrupted the run"

#: A level gets at least this fraction of an equal share of the budget, even if lower levels took longer.
SMALLEST_SHARE = 0.5


def certify(
    target: str | OpenStorage,
    level: str = "L0",
    budget: float = 60,
    seed: int | None = None,
    *,
    examples: int | None = None,
    steps: int = 50,
    progress: Progress = lambda _: None,
) -> CertificationReport:
    """Test a storage against the contract for `budget` seconds, or with `examples` histories on each level.

    A history is a random sequence of at most `steps` calls. The same `seed` repeats a run.

    `target` is a URL or a picklable function `open_storage(location, clock)`. On the server or in the folder
    of a URL, the kit only uses locations that it creates, and it removes them at the end.

    The levels up to `level` share the budget. Levels above the first broken one do not run. The report has
    a part for each level, and the shortest sequence of calls that the kit found for each failure.

    Raise Refused for an unknown level, and for a negative budget or number of histories.

    For example, in a test of a storage of your own:

        def test_my_storage_keeps_the_contract():
            report = certify(open_my_storage, "L2", budget=120)
            assert report.certified, report.text()

    A function that is passed as `target` must be importable by its name: some tests start processes. For the
    same reason, a script calls `certify` under `if __name__ == "__main__":`.
    """
    check_level(level)
    check_effort(budget, examples)
    first = random.randrange(2**32) if seed is None else seed
    locations = Locations(target)
    try:
        with without_exits():
            report = Certification(locations, level, first, budget).run(examples, steps, progress)
        return without_passwords(report, target)
    finally:
        with suppress(StorageFailed):
            locations.remove_all()


def check_level(level: str) -> None:
    """Raise Refused unless the level is one of "L0" to "L4"."""
    if level not in LEVELS:
        raise Refused(f"unknown level {level!r}; expected one of {', '.join(LEVELS)}", field="level")


def check_effort(budget: float, examples: int | None) -> None:
    """Raise Refused for a negative budget or number of histories. 0 is accepted and certifies no level."""
    if isnan(budget) or budget < 0:
        raise Refused(f"budget is {budget}; it must be a number of seconds, 0 or more", field="budget")
    if examples is not None and examples < 0:
        raise Refused(
            f"examples is {examples}; it must be a number of histories, 0 or more", field="examples"
        )


@frozen
class Certification:
    """One certification of one storage, from its first location to the report."""

    _locations: Locations
    _level: str
    _seed: int
    _budget: float
    _began: float = field(factory=time.monotonic, init=False)

    def run(self, examples: int | None, steps: int, progress: Progress) -> CertificationReport:
        """Probe the capabilities, run the levels, and return the report."""
        names = levels_up_to(self._level)
        try:
            claims, durability, capabilities = self._probe_capabilities()
        except KNOWN_ERRORS:
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the storage may raise anything
            levels = [level_report(names[0], *findings_of(error, Findings()), 0.0)]
            return self._report("", (), levels, examples)
        levels = []
        for name in names:
            plan = LevelPlan(
                locations=self._locations,
                claims=claims,
                seed=self._seed,
                budget=self._share(name),
                examples=examples,
                steps=steps,
                progress=progress,
                untested=untested_claims(capabilities),
            )
            reason = find_reason_to_stop(levels)
            levels.append(skipped_level_report(name, reason) if reason else run_level(name, plan))
        return self._report(durability, capabilities, levels, examples)

    def _report(
        self,
        durability: str,
        capabilities: tuple[CapabilityReport, ...],
        levels: Sequence[LevelReport],
        examples: int | None,
    ) -> CertificationReport:
        """Return the report. Requested levels without a report of their own did not run."""
        reason = find_reason_to_stop(levels)
        missing = levels_up_to(self._level)[len(levels) :]
        levels = (*levels, *(skipped_level_report(name, reason) for name in missing))
        reached = highest_reached(levels)
        return CertificationReport(
            target=self._locations.name,
            level=self._level,
            certified=reached == self._level and not false_claims(capabilities),
            reached=reached,
            seed=self._seed,
            budget=self._budget,
            examples=examples,
            seconds=round(time.monotonic() - self._began, 3),
            durability=durability,
            capabilities=capabilities,
            levels=levels,
            kit=version("dibs"),
            date=today(),
        )

    def _probe_capabilities(self) -> tuple[Capabilities, str, tuple[CapabilityReport, ...]]:
        runner = LoopRunner()
        try:
            claims, durability, found = runner.run(probe_capabilities(self._locations), LIMITS.test)
            return claims, durability, tuple(found)
        finally:
            runner.close()

    def _share(self, name: str) -> float:
        """Return the seconds for a level. It and the levels above it share the rest of the budget equally.

        Lower levels may take longer than their share. Each level gets at least `SMALLEST_SHARE` of its own.
        """
        names = levels_up_to(self._level)
        left = self._began + self._budget - time.monotonic()
        smallest = SMALLEST_SHARE * self._budget / len(names)
        return max(smallest, left / (len(names) - names.index(name)))


def untested_claims(capabilities: Iterable[CapabilityReport]) -> tuple[SkippedTest, ...]:
    """Return the capabilities that the storage claims and the kit could not try. L0 is then not reached."""
    return tuple(
        SkippedTest(name=capability.name, why=capability.note or "it could not be tried")
        for capability in capabilities
        if capability.claimed and capability.found is None
    )


def levels_up_to(level: str) -> list[str]:
    """Return the level names up to this one, lowest first: ["L0", "L1"] for "L1"."""
    names = list(LEVELS)
    return names[: names.index(level) + 1]


def run_level(name: str, plan: LevelPlan) -> LevelReport:
    """Run one level and return its report. The report includes the time that the level took.

    An exception of the storage is a failure of the level. Ctrl-C ends the level with what it has tried.
    """
    began, stopped = time.monotonic(), ""
    try:
        found = LEVELS[name](plan)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the storage may raise anything
        found, stopped = findings_of(error, plan.findings_so_far())
    return level_report(name, found, stopped, round(time.monotonic() - began, 3))


def findings_of(error: BaseException, so_far: Findings) -> tuple[Findings, str]:
    """Return the findings of a level that an exception ended, and INTERRUPTED after Ctrl-C, else ""."""
    if isinstance(error, KeyboardInterrupt):
        gap = SkippedTest(name="the rest of the level", why=INTERRUPTED)
        return structs.replace(so_far, untested=(*so_far.untested, gap)), INTERRUPTED
    failure = exception_failure(error)
    histories = max(1, so_far.histories)
    return structs.replace(so_far, histories=histories, failures=(failure,)), ""


def level_report(name: str, found: Findings, stopped: str, seconds: float) -> LevelReport:
    """Return the report of a level with these findings, and with the verdict that follows from them."""
    fields = {field: getattr(found, field) for field in Findings.__struct_fields__}
    return LevelReport(
        name=name,
        title=LEVEL_TITLES[name],
        verdict=level_verdict(found),
        seconds=seconds,
        stopped=stopped,
        **fields,
    )


def find_reason_to_stop(levels: Sequence[LevelReport]) -> str:
    """Return why the levels above these do not run, or ""."""
    failed = next((level.name for level in levels if level.verdict == "broken"), "")
    interrupted = any(level.stopped for level in levels)
    return f"{failed} failed" if failed else INTERRUPTED if interrupted else ""


def skipped_level_report(name: str, reason: str) -> LevelReport:
    """Return the report of a level that did not run."""
    return LevelReport(name=name, title=LEVEL_TITLES[name], verdict="not run", stopped=reason)


def today() -> str:
    """Return the day in UTC, as "2026-11-23".

    The environment variable SOURCE_DATE_EPOCH sets the day, so that two runs can write equal reports.
    """
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def highest_reached(levels: Sequence[LevelReport]) -> str:
    """Return the highest level that is reached together with all levels below it, or ""."""
    reached = ""
    for level in levels:
        if level.verdict != "reached":
            break
        reached = level.name
    return reached
