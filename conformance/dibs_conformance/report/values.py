"""What a certification found, as values: the report, its levels, their laws. JSON has these by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

#: The edition of the contract that was held against the storage; it changes with the contract's meaning.
CONTRACT: Final = "1"

#: The title of each level, lowest first. `levels.LEVELS` holds the function that runs it.
LEVEL_TITLES: Final = {
    "L0": "one call at a time",
    "L1": "calls interleaved",
    "L2": "threads and processes",
    "L3": "clients that die",
    "L4": "servers that fail",
}

Verdict = Literal["kept", "broken", "not tested"]

#: `not tested`: nothing broke, but something the level is about did not occur. `not run`: a lower one broke.
LevelVerdict = Literal["reached", "broken", "not tested", "not run"]


class LawReport(Struct, frozen=True, kw_only=True):
    """One law: never met is not tested, and never counts as kept."""

    name: str
    section: str
    sentence: str
    #: How often the situation occurred of which the law speaks.
    met: int
    verdict: Verdict


class CapabilityReport(Struct, frozen=True, kw_only=True):
    """One power: what the storage says of itself, and what was found; None could not be tried."""

    name: str
    claimed: bool
    found: bool | None
    note: str = ""

    @property
    def holds(self) -> bool:
        """An untrue claim does not; a power nobody claimed is only told."""
        return not self.claimed or self.found is not False


class Failure(Struct, frozen=True, kw_only=True):
    """What went wrong, and the shortest story found that leads there."""

    #: The law that is broken, or the check or verb whose answer the contract does not allow.
    law: str
    why: str
    story: tuple[str, ...] = ()


class Gap(Struct, frozen=True, kw_only=True):
    """Something that was not tried, by name, and why not."""

    name: str
    why: str


class Findings(Struct, frozen=True, kw_only=True):
    """What one level found; every level returns one (levels.Run)."""

    #: Sequences of calls, schedules or recorded runs, each judged as a whole; and the calls in them.
    histories: int = 0
    events: int = 0
    #: How often each kind of fault was injected: "kill -9", "reply cut". Only what did happen counts.
    faults: Mapping[str, int] = {}
    laws: tuple[LawReport, ...] = ()
    failures: tuple[Failure, ...] = ()
    #: What the level is about and could not be tried here: the level is then not reached.
    untested: tuple[Gap, ...] = ()
    #: What does not apply, because the storage does not claim the power it is about; told, no more.
    spared: tuple[Gap, ...] = ()


class LevelReport(Findings, frozen=True, kw_only=True):
    """One level of the report: what was found, and whether that reaches it."""

    name: str
    title: str
    verdict: LevelVerdict
    seconds: float = 0.0

    @property
    def unmet(self) -> tuple[str, ...]:
        """Name what keeps the level from being reached although nothing broke."""
        return (
            *(gap.name for gap in self.untested),
            *(law.name for law in self.laws if law.verdict == "not tested"),
        )


class ReportData(Struct, frozen=True, kw_only=True):
    """What a certification found."""

    target: str
    #: The level that was asked for; `certified` says whether it was reached.
    level: str
    certified: bool
    #: The highest level of which nothing is missing, below and on it; empty when not even L0 is reached.
    reached: str
    #: Repeats the run, together with the same budget or number of examples.
    seed: int
    seconds: float
    durability: str
    capabilities: tuple[CapabilityReport, ...]
    levels: tuple[LevelReport, ...]
    contract: str = CONTRACT
    kit: str = ""

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Return the untrue claims, and what broke on any level."""
        return (*untrue(self.capabilities), *(f for level in self.levels for f in level.failures))

    @property
    def laws(self) -> tuple[LawReport, ...]:
        """Return the laws of every level, lowest first."""
        return tuple(law for level in self.levels for law in level.laws)

    @property
    def histories(self) -> int:
        """Return how many histories were judged, over all levels."""
        return sum(level.histories for level in self.levels)

    @property
    def events(self) -> int:
        """Return how many calls they hold."""
        return sum(level.events for level in self.levels)


def untrue(powers: tuple[CapabilityReport, ...]) -> tuple[Failure, ...]:
    """Return a failure for each power that is claimed and was not found."""
    return tuple(
        Failure(law=power.name, why=f"claimed, and not found. {power.note}".rstrip())
        for power in powers
        if not power.holds
    )
