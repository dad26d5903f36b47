"""What a law is: a sentence of the contract, held after every call, that counts its own occasions."""

from __future__ import annotations

from typing import ClassVar

from dibs_conformance.laws.observed import ObservedCall, ObservedHistory


class LawBroken(AssertionError):
    """A law of the contract is broken."""

    def __init__(self, law: Law, why: str) -> None:
        super().__init__(f"{law.name} (contract {law.section}): {why}")
        self.law = law.name


class Law:
    """One law. `met` counts how often what it speaks of occurred, over all examples."""

    name: ClassVar[str]
    section: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self) -> None:
        self.met = 0

    def begin(self) -> None:
        """Forget the last example; `met` stays."""

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        """Judge a call by what was seen before it."""

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        """Judge it, and its slots, once the history has taken it in."""

    def check(self, kept: object, why: str, *about: object) -> None:
        """Count one occasion. Raises Broken unless `kept`, saying `why.format(*about)`.

        Nearly every occasion is kept: what it is about, whole slots for one, is put into words only if not.
        """
        self.met += 1
        if not kept:
            raise LawBroken(self, why.format(*about))
