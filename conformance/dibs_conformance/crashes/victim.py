"""A process that things are done to: warm, and another one once it has died of them."""

from __future__ import annotations

from dibs_conformance.concurrent.actions import Hands, Order
from dibs_conformance.concurrent.examples import START
from dibs_conformance.concurrent.process_clients import Member
from dibs_conformance.crashes.scenes import SCENES
from dibs_conformance.target import LevelPlan

#: What a process does before anything is counted.
WARMING = (*SCENES["settle_and_claim"].before, SCENES["settle_and_claim"].act)


class Victim:
    """A place at which there is a process whenever one is asked for."""

    def __init__(self, plan: LevelPlan, location: str) -> None:
        self._target, self._location = plan.locations.target, location
        self._member: Member | None = None

    @property
    def lives(self) -> bool:
        """Whether there is one now, without making one."""
        return self._member is not None

    @property
    def died(self) -> bool:
        """Whether the one that was there is dead by now."""
        return self._member is not None and self._member.died

    def alive(self) -> Member:
        """Return the process, a new one if the last was buried."""
        if self._member is None:
            self._member = Member(self._target, self._location, "vic")
            # What only happens the first time, as scripts that are loaded, would count as part of each act.
            self._member.does(Order(WARMING, "warm", Hands(), START))
            self._member.calls()
        return self._member

    def bury(self) -> None:
        """End what is there; who is asked for next is another."""
        if self._member is not None:
            self._member.close()
        self._member = None
