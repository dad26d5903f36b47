"""What a rule is: a sentence about a whole history that counts its own occasions and tells what breaks it.

A rule speaks only of what is certain: a call without an answer may have happened at any time since it was
sent, or never, and every rule gives it the benefit of that doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from attrs import frozen

from dibs_conformance.history.by_id import Key, RecordedHistory
from dibs_conformance.history.step import Step


@frozen
class Violation:
    """What no storage that keeps the contract can have answered."""

    rule: str
    #: The queue and id it is about; the id is empty when it is about a queue or a lease.
    key: Key
    why: str
    #: The steps that together cannot be.
    steps: tuple[Step, ...] = ()


class Rule:
    """One rule; `met` counts the occasions of which it speaks, in the history it was given."""

    name: ClassVar[str]
    title: ClassVar[str]
    section: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self) -> None:
        self.met = 0

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        """Tell every breach."""
        raise NotImplementedError

    def violation(self, key: Key, why: str, *steps: Step) -> Violation:
        return Violation(self.name, key, why, steps)


def by_answer(steps: Iterable[Step]) -> list[Step]:
    """The steps that were answered, the earliest answer first."""
    return sorted((step for step in steps if step.ended is not None), key=ended)


def ended(step: Step) -> int:
    """When the answer came. Only for steps that have one."""
    assert step.ended is not None  # noqa: S101 - the callers leave out the others
    return step.ended


def before(earlier: Step, later: Step) -> bool:
    """Whether one was answered before the other was sent."""
    return earlier.ended is not None and earlier.ended < later.began
