"""What a level is: a function that tries a storage in one way, and returns what it found as a value.

A level is given all it may use, and returns Findings: how many histories it judged and the calls in them,
the faults it injected by kind, its laws with how often each was met, the first failure with its story, and
by name what it could not try (`untested`, which keeps the level from being reached) or what does not apply
(`spared`). It raises only for a fault of the kit. One seed gives one run, as far as the machine allows.

Whether that reaches the level is decided in one place, `verdict` below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dibs.storage.capabilities import Capabilities
from dibs_conformance.report import Findings, Gap, LawReport, Verdict
from dibs_conformance.report.values import LevelVerdict
from dibs_conformance.sequential.trial import Progress
from dibs_conformance.target import Places


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a level may use."""

    #: Opens places in this process; `places.target` is what another process opens (it is picklable).
    places: Places
    #: What the storage says of itself; what it does not claim is spared, not tested.
    claims: Capabilities
    seed: int
    #: Seconds, about. The level returns when they are used up, or at its first failure.
    budget: float
    #: Histories to judge, in place of the budget: a run that is the same on every machine.
    examples: int | None = None
    #: Calls in a history, at most.
    steps: int = 50
    #: Powers that are claimed and could not be tried: L0 tells of them.
    untried: tuple[Gap, ...] = ()
    #: Told how many histories have been judged so far.
    progress: Progress = lambda _: None


Run = Callable[[Given], Findings]


def verdict(found: Findings) -> LevelVerdict:
    """A level is reached when nothing broke and nothing it is about was left out."""
    if found.failures:
        return "broken"
    unmet = found.untested or any(law.verdict == "not tested" for law in found.laws)
    return "not tested" if unmet or not found.histories else "reached"


def law_report(name: str, section: str, sentence: str, met: int, *, broken: bool) -> LawReport:
    """Report a law by how often it was met: never met is not tested."""
    how: Verdict = "broken" if broken else "kept" if met else "not tested"
    return LawReport(name=name, section=section, sentence=sentence, met=met, verdict=how)
