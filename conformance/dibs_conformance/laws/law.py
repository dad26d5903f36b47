"""The base class of a law: a rule of the contract that is checked after every call and counts its checks."""

from __future__ import annotations

from typing import ClassVar

from dibs_conformance.laws.observed import ObservedCall, ObservedHistory


class LawBroken(AssertionError):
    """An observed result breaks a law of the contract."""

    def __init__(self, law: Law, why: str) -> None:
        super().__init__(f"{law.name} (contract {law.section}): {why}")
        self.law = law.name


class Law:
    """One law. `met` is the number of its checks, over all examples."""

    name: ClassVar[str]
    section: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self) -> None:
        self.met = 0

    def begin(self) -> None:
        """Forget the example before. `met` is kept."""

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        """Check a call against the history before it."""

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        """Check a call, and its slots, against the history that includes it."""

    def check(self, kept: object, why: str, *about: object) -> None:
        """Count one check. Raises LawBroken with `why.format(*about)` if `kept` is false.

        The text is only formatted for a broken law, because nearly every check passes and `about` may hold
        whole slots.
        """
        self.met += 1
        if not kept:
            raise LawBroken(self, why.format(*about))
