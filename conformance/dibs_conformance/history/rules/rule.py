"""The base class of rules. A rule checks one sentence on a whole history and counts how often it applied.

A rule reports only certain violations. A call without an answer may have taken effect at any time since it
was sent, or never, and every rule allows for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from attrs import frozen

from dibs_conformance.history.by_id import Key, RecordedHistory
from dibs_conformance.steps import RecordedStep


@frozen
class Violation:
    """A contradiction between steps that no correct storage can produce."""

    rule: str
    #: The queue and the id. The id is empty if the violation is about a queue or a lease.
    key: Key
    why: str
    #: The contradicting steps.
    steps: tuple[RecordedStep, ...] = ()


class HistoryRule:
    """One rule. `met` counts how often it applied to the history."""

    name: ClassVar[str]
    title: ClassVar[str]
    section: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self) -> None:
        self.met = 0

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        """Yield every violation."""
        raise NotImplementedError

    def violation(self, key: Key, why: str, *steps: RecordedStep) -> Violation:
        return Violation(self.name, key, why, steps)


def by_answer(steps: Iterable[RecordedStep]) -> list[RecordedStep]:
    """Return the answered steps, ordered by the time of their answer."""
    return sorted((step for step in steps if step.ended is not None), key=ended)


def ended(step: RecordedStep) -> int:
    """Return the time of the answer. The step must have one."""
    assert step.ended is not None  # noqa: S101 - callers pass answered steps only
    return step.ended


def began(step: RecordedStep) -> int:
    return step.began


def newest_before(
    steps: Iterable[RecordedStep], known: Iterable[RecordedStep], number: Callable[[RecordedStep], int]
) -> Iterator[tuple[RecordedStep, RecordedStep | None]]:
    """Yield the steps in the order they were sent, each with a known step that was answered before.

    That step is the one with the highest number; None if no known step was answered before.
    """
    answered, index, newest = by_answer(known), 0, None
    for step in sorted(steps, key=began):
        while index < len(answered) and ended(answered[index]) < step.began:
            if newest is None or number(answered[index]) > number(newest):
                newest = answered[index]
            index += 1
        yield step, newest


def fence(step: RecordedStep) -> int:
    return step.fence


def before(earlier: RecordedStep, later: RecordedStep) -> bool:
    """Return whether `earlier` was answered before `later` was sent."""
    return earlier.ended is not None and earlier.ended < later.began
