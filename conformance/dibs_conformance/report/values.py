"""The values of a report: laws, failures, findings and levels, and how findings are added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

#: The version of the contract that the kit tests. A change of a rule of the contract changes it.
CONTRACT: Final = "1"

#: The title of each level, lowest first.
LEVEL_TITLES: Final = {
    "L0": "one call at a time",
    "L1": "calls interleaved",
    "L2": "threads and processes",
    "L3": "clients that die",
    "L4": "servers that fail",
}

Verdict = Literal["kept", "broken", "not tested"]

#: `not tested`: no law is broken, but a part of the level could not be tested. `not run`: a lower level is
#: broken.
LevelVerdict = Literal["reached", "broken", "not tested", "not run"]


#: The reason for a law that was not checked.
UNMET: Final = "no history of this run led to a check of this law; try a larger budget"


class LawReport(Struct, frozen=True, kw_only=True):
    """The result of one law. A law that was never checked is `not tested`, never `kept`."""

    name: str
    section: str
    sentence: str
    #: Number of times that the law was checked.
    met: int
    verdict: Verdict


class CapabilityReport(Struct, frozen=True, kw_only=True):
    """The result of the probe of one capability.

    `claimed` is the claim of the storage. `found` is the result of the probe, None if it could not run.
    """

    name: str
    claimed: bool
    found: bool | None
    note: str = ""

    @property
    def holds(self) -> bool:
        """Return False if the storage claims the capability and does not have it."""
        return not self.claimed or self.found is not False


class LawFailure(Struct, frozen=True, kw_only=True):
    """A broken law, with the shortest sequence of calls that the kit found for it."""

    #: The broken law, or the verb or check whose result the contract does not allow.
    law: str
    why: str
    story: tuple[str, ...] = ()


class SkippedTest(Struct, frozen=True, kw_only=True):
    """A test that did not run, or only in part, and the reason."""

    name: str
    why: str


class NotTried(Struct, frozen=True):
    """A part of a level that was not tried: the row of the report that limits its verdict."""

    #: The name of the level, such as "L2".
    level: str
    what: str
    reason: str
    #: True if the storage claims it, or the level needs it. The level is then not reached.
    needed: bool = False


class Findings(Struct, frozen=True, kw_only=True):
    """The result of one level, without its verdict: its laws, failures and skipped tests."""

    #: Number of tested histories (sequences of calls, schedules or recorded runs), and of the calls in them.
    histories: int = 0
    events: int = 0
    #: Number of faults that were injected, by kind, such as "kill -9" or "reply cut". Only faults that took
    #: effect count.
    faults: Mapping[str, int] = {}
    laws: tuple[LawReport, ...] = ()
    failures: tuple[LawFailure, ...] = ()
    #: The numbers of tests by name, such as "waits" and "bad calls". Faults are counted in `faults`.
    tried: Mapping[str, int] = {}
    #: Verbs that overlapped with a call of another client, sorted.
    raced: tuple[str, ...] = ()
    #: Tests that belong to the level and could not run here. They keep the level from being reached.
    untested: tuple[SkippedTest, ...] = ()
    #: Tests that do not apply, because the storage does not claim the capability. They do not affect the
    #: verdict.
    spared: tuple[SkippedTest, ...] = ()
    #: Tests that ran only in part, because the budget ended. The level needs no more than they did.
    partly: tuple[SkippedTest, ...] = ()


class LevelReport(Findings, frozen=True, kw_only=True):
    """One level of the report: its findings, its title and its verdict."""

    name: str
    title: str
    verdict: LevelVerdict
    seconds: float = 0.0
    #: Why the level did not run, or did not run to its end: a lower level, the user. "" if it did.
    stopped: str = ""

    @property
    def unmet(self) -> tuple[str, ...]:
        """Return the names of the laws that were never checked, and of the tests that could not run."""
        return (
            *(gap.name for gap in self.untested),
            *(law.name for law in self.laws if law.verdict == "not tested"),
        )

    @property
    def not_tried(self) -> tuple[NotTried, ...]:
        """Return a row for each part of the level that was not tried; those that the level needs first."""
        if self.verdict == "not run":
            return (
                NotTried(self.name, "the whole level", self.stopped or "a lower level failed", needed=True),
            )
        # A level that failed stopped early, so its other laws have no reason of their own.
        unmet = [law.name for law in self.laws if law.verdict == "not tested" and not self.failures]
        return (
            *(NotTried(self.name, gap.name, gap.why, needed=True) for gap in self.untested),
            *(NotTried(self.name, name, UNMET, needed=True) for name in unmet),
            *(NotTried(self.name, gap.name, gap.why) for gap in (*self.spared, *self.partly)),
        )


class ReportData(Struct, frozen=True, kw_only=True):
    """The fields of a report. The subclass `Report` adds the methods that show it."""

    target: str
    #: The requested level. `certified` is True if it was reached and no claim is false.
    level: str
    certified: bool
    #: The highest level that was reached together with all lower levels; "" if L0 was not reached.
    reached: str
    #: Seed of the run. The same seed with the same budget or number of examples repeats the run.
    seed: int
    #: The requested effort: seconds for all levels, or histories on each level if `examples` is set.
    budget: float = 60.0
    examples: int | None = None
    seconds: float
    durability: str
    capabilities: tuple[CapabilityReport, ...]
    levels: tuple[LevelReport, ...]
    contract: str = CONTRACT
    #: The version of the kit, which is that of dibs.
    kit: str = ""
    #: The day of the run in UTC, as "2026-11-23". It is from SOURCE_DATE_EPOCH, if that is set.
    date: str = ""

    @property
    def failures(self) -> tuple[LawFailure, ...]:
        """Return a failure for each falsely claimed capability, then the failures of all levels."""
        return (*false_claims(self.capabilities), *(f for level in self.levels for f in level.failures))

    @property
    def laws(self) -> tuple[LawReport, ...]:
        """Return the reports of the laws of all levels, lowest level first."""
        return tuple(law for level in self.levels for law in level.laws)

    @property
    def not_tried(self) -> tuple[NotTried, ...]:
        """Return a row for each part that was not tried, up to the highest level that exists."""
        requested = {level.name for level in self.levels}
        above = [name for name in LEVEL_TITLES if name not in requested]
        return (
            *(row for level in self.levels for row in level.not_tried),
            *(NotTried(name, "the whole level", "not requested") for name in above),
        )

    @property
    def failed_at(self) -> str:
        """Return the level that failed, the lowest level for a false claim, or "" without a failure."""
        if false_claims(self.capabilities):
            return self.levels[0].name if self.levels else self.level
        return next((level.name for level in self.levels if level.failures), "")

    @property
    def effort(self) -> str:
        """Return the requested effort in words: "60 s for L0 to L3", or "25 random histories a level"."""
        if self.examples is not None:
            return f"{self.examples:,} random histories a level"
        return f"{self.budget:g} s for L0" + (f" to {self.level}" if self.level != "L0" else "")

    @property
    def histories(self) -> int:
        return sum(level.histories for level in self.levels)

    @property
    def events(self) -> int:
        return sum(level.events for level in self.levels)


def false_claims(capabilities: tuple[CapabilityReport, ...]) -> tuple[LawFailure, ...]:
    """Return a failure for each capability that is claimed and was not found."""
    return tuple(
        LawFailure(law=capability.name, why=f"claimed, and not found. {capability.note}".rstrip())
        for capability in capabilities
        if not capability.holds
    )


def level_verdict(found: Findings) -> LevelVerdict:
    """Return `broken` after a failure, `not tested` if a part of the level did not run, else `reached`."""
    if found.failures:
        return "broken"
    unmet = found.untested or any(law.verdict == "not tested" for law in found.laws)
    return "not tested" if unmet or not found.histories else "reached"


def law_report(name: str, section: str, sentence: str, met: int, *, broken: bool) -> LawReport:
    """Return the report of a law that was checked `met` times. With 0 checks it is `not tested`."""
    verdict: Verdict = "broken" if broken else "kept" if met else "not tested"
    return LawReport(name=name, section=section, sentence=sentence, met=met, verdict=verdict)


def merge_findings(*found: Findings) -> Findings:
    """Return the sum of several findings of one level. The checks of a law are added up."""
    laws: dict[str, LawReport] = {}
    for law in (law for one in found for law in one.laws):
        before = laws.get(law.name)
        laws[law.name] = law if before is None else merge_law_reports(before, law)
    return Findings(
        histories=sum(one.histories for one in found),
        events=sum(one.events for one in found),
        faults=add_counts(one.faults for one in found),
        tried=add_counts(one.tried for one in found),
        raced=tuple(sorted({verb for one in found for verb in one.raced})),
        laws=tuple(laws.values()),
        failures=tuple(failure for one in found for failure in one.failures),
        untested=tuple(gap for one in found for gap in one.untested),
        spared=tuple(gap for one in found for gap in one.spared),
        partly=tuple(gap for one in found for gap in one.partly),
    )


def add_counts(found: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of several mappings from a kind to a number."""
    total: dict[str, int] = {}
    for kind, count in (pair for one in found for pair in one.items()):
        total[kind] = total.get(kind, 0) + count
    return total


def merge_law_reports(one: LawReport, other: LawReport) -> LawReport:
    """Return one report for a law that occurs in two findings. It is broken if one of the two is broken."""
    broken = "broken" in (one.verdict, other.verdict)
    return law_report(one.name, one.section, one.sentence, one.met + other.met, broken=broken)
