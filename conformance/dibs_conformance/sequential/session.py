"""What the examples of one certification share, and what a storage has handed out in one of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis.errors import HypothesisException

from dibs.model.results import ClaimResult
from dibs_conformance.sequential.lockstep import LawChecker
from dibs_conformance.target import Locations, LoopRunner

#: Told how many histories have been judged so far.
Progress = Callable[[int], None]


@dataclass
class Issued:
    """What the storage has handed out so far, oldest first: stale ones stay."""

    runs: list[tuple[str, str, int]] = field(default_factory=list)
    revisions: list[tuple[str, str, int]] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)

    def add_claim(self, queue: str, claim: ClaimResult) -> None:
        self.runs += [(queue, job.id, job.run.fence) for job in claim.jobs if job.run is not None]
        self.revisions += [(queue, job.id, job.revision) for job in claim.jobs]


class BudgetSpent(BaseException):
    """Time is up. Hypothesis lets it through at once, where it would look into an Exception."""


@dataclass
class ExampleSession:
    """What all examples of one certification share."""

    locations: Locations
    checker: LawChecker
    runner: LoopRunner
    durable: bool = False
    cross_queue: bool = False
    examples: int = 0
    calls: int = 0
    #: When no other example is begun, by time.monotonic().
    until: float = math.inf
    #: What broke, and the shortest story that was seen of it.
    broken: tuple[Exception, tuple[str, ...]] | None = None

    def begin(self) -> None:
        """Begin an example. Raises Enough; but what broke may be made shorter."""
        if self.broken is None and time.monotonic() > self.until:
            raise BudgetSpent
        self.examples += 1
        self.checker.begin()

    def remember(self, error: BaseException | None) -> None:
        """Keep what broke an example: played again, the storage may choose otherwise, and break nothing."""
        if not isinstance(error, Exception) or isinstance(error, HypothesisException):
            return
        story = tuple(self.checker.story.lines())
        if self.broken is None or len(story) <= len(self.broken[1]):
            self.broken = error, story
