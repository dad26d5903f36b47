"""The base class of a law. A law checks one rule of the contract on every call, and counts its checks."""

from __future__ import annotations

from typing import ClassVar

from dibs_conformance.laws.observed import ObservedCall, ObservedHistory


class LawBroken(AssertionError):
    """A result of the storage breaks a law of the contract."""

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
        """Forget the calls of the previous example. The number of checks, `met`, is kept."""

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        """Check a call. `history` ends before the call."""

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        """Check a call and the slots that were read after it. `history` includes the call."""

    def check(self, kept: object, why: str, *about: object) -> None:
        """Count one check. Raises LawBroken with `why.format(*about)` if `kept` is false.

        Nearly every check passes, and `about` may hold whole slots, so the text is formatted only on failure.
        """
        self.met += 1
        if not kept:
            raise LawBroken(self, why.format(*about))
