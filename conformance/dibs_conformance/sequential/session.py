"""State that all examples of one certification share, and whether they may use several handles.

A handle is a storage object. Several handles are open at one location at the same time, and a change through
one handle must show in each other one.
"""

from __future__ import annotations

import math
import time
from contextlib import AsyncExitStack
from typing import Final

from attrs import define
from hypothesis.errors import HypothesisException

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.capabilities import Capabilities
from dibs_conformance.answer_types import missing_verb_failure
from dibs_conformance.lockstep import Interruptions, interruption_kinds
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.report import SkippedTest
from dibs_conformance.report.call_text import CallRecorder
from dibs_conformance.report.exceptions import StorageFailed, exception_failure
from dibs_conformance.report.values import LawFailure
from dibs_conformance.target import Locations


class BudgetSpent(BaseException):
    """An exception that ends a chunk of examples when the budget is spent.

    It is a BaseException, because Hypothesis would treat an Exception as a failure and try to shrink it.
    """


@define
class ExampleSession:
    """State that all examples of one certification share."""

    locations: Locations
    #: The calls of the current example.
    story: CallRecorder
    runner: LoopRunner
    durable: bool = False
    #: True if the storage offers its rare work (dibs.storage.abilities).
    compacts: bool = False
    cross_queue: bool = False
    #: True if claims of the storage obey `per_key`, `rate` and `key_rate`.
    limits: bool = False
    #: True if claims of the storage obey `fair` and `shares`.
    fair: bool = False
    #: True if the storage keeps the output of runs.
    output: bool = False
    #: True if several handles, each a storage object of its own, show the same jobs of a location.
    handles: bool = False
    examples: int = 0
    calls: int = 0
    #: True after a call that never returned or ended its process. The example is not replayed then.
    hangs: bool = False
    #: Time (`time.monotonic()`) after which no other example starts.
    until: float = math.inf
    #: The first failure, with the shortest sequence of calls that led to it.
    broken: LawFailure | None = None

    def interruptions(self, every: int) -> Interruptions:
        """Return a plan of restarts and compactions, as far as the storage claims to survive them."""
        return Interruptions(interruption_kinds(durable=self.durable, compacts=self.compacts), every)

    def begin(self) -> None:
        """Start an example. Raises BudgetSpent after `until`, except while a failure is being shrunk."""
        if self.hangs or (self.broken is None and time.monotonic() > self.until):
            raise BudgetSpent
        self.examples += 1
        self.story.begin()

    def remember(self, error: BaseException | None) -> None:
        """Keep the error of a failed example, if its sequence of calls is the shortest so far.

        Hypothesis replays the example, but the storage may make other choices, and the replay may pass.
        """
        if not isinstance(error, Exception) or isinstance(error, HypothesisException):
            return
        self.hangs = isinstance(error, StorageFailed)
        failure = to_failure(error, self.story)
        if self.broken is None or len(failure.story) <= len(self.broken.story):
            self.broken = failure


def to_failure(error: Exception, calls: CallRecorder) -> LawFailure:
    """Return the failure for an error, with the calls that lead to it. A wrong result names its verb."""
    story = tuple(calls.lines())
    if isinstance(error, Mismatch):
        return LawFailure(law=calls.newest, why=str(error), story=story)
    return missing_verb_failure(error, story) or exception_failure(error, story)


NAME: Final = "several handles"


async def find_reason_to_skip(locations: Locations, claims: Capabilities) -> SkippedTest | None:
    """Return why a location cannot be opened twice, or None if the examples can use two handles.

    A storage with the capability `shared` must allow it. One that is only `durable` may lock its location.
    """
    if claims.shared:
        return None
    if claims.durable:
        return SkippedTest(name=NAME, why="the storage is durable and does not claim the capability `shared`")
    try:
        same = await shows_same_jobs(locations)
    except Exception as error:  # noqa: BLE001 - the examples report what a single handle cannot do
        return SkippedTest(name=NAME, why=f"a second handle cannot be tried: {type(error).__name__}: {error}")
    return None if same else SkippedTest(name=NAME, why="a second opening of a location has jobs of its own")


async def shows_same_jobs(locations: Locations) -> bool:
    """Return whether a job that was enqueued through one handle shows in another one."""
    location = locations.new()
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(locations.open(location, "manual")) for _ in range(2)
        ]
        await first.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=1)
        [slot] = await second.get("q", ["a"], now=1)
        return slot.current is not None
