"""A process that things are done to: warm, and another one once it has died of them."""

from __future__ import annotations

from dibs_conformance.concurrent.actions import ClientState, Program
from dibs_conformance.concurrent.examples import START
from dibs_conformance.concurrent.process_clients import ProcessClient
from dibs_conformance.crashes.scenes import SCENES
from dibs_conformance.target import LevelPlan

#: What a process does before anything is counted.
WARM_UP = (*SCENES["settle_and_claim"].setup, SCENES["settle_and_claim"].action)


class Victim:
    """A place at which there is a process whenever one is asked for."""

    def __init__(self, plan: LevelPlan, location: str) -> None:
        self._target, self._location = plan.locations.target, location
        self._process: ProcessClient | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is one now, without making one."""
        return self._process is not None

    @property
    def died(self) -> bool:
        """Whether the one that was there is dead by now."""
        return self._process is not None and self._process.died

    def process(self) -> ProcessClient:
        """Return the process, a new one if the last was buried."""
        if self._process is None:
            self._process = ProcessClient(self._target, self._location, "vic")
            # What only happens the first time, as scripts that are loaded, would count as part of each act.
            self._process.start(Program(WARM_UP, "warm", ClientState(), START))
            self._process.wait()
        return self._process

    def discard(self) -> None:
        """End what is there; who is asked for next is another."""
        if self._process is not None:
            self._process.close()
        self._process = None
