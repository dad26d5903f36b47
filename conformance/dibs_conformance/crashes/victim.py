"""The victim of the crash tests: the client process that is killed, stopped or given errors."""

from __future__ import annotations

from dibs_conformance.concurrent.process_clients import ProcessClient
from dibs_conformance.crashes.scenes import SCENES
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs.actions import START, ClientState, Program

#: Actions that a new process runs once before its lines and system calls are counted.
WARM_UP = (*SCENES["settle_and_claim"].setup, SCENES["settle_and_claim"].action)


class Victim:
    """The current victim process at a location. A new process is started when the old one was discarded."""

    def __init__(self, plan: LevelPlan, location: str) -> None:
        self._target, self._location = plan.locations.target, location
        self._process: ProcessClient | None = None

    @property
    def is_running(self) -> bool:
        """True if a process was started and not discarded. It may be dead."""
        return self._process is not None

    @property
    def died(self) -> bool:
        """True if the current process is dead."""
        return self._process is not None and self._process.died

    def process(self) -> ProcessClient:
        """Return the current process, or start one."""
        if self._process is None:
            self._process = ProcessClient(self._target, self._location, "vic")
            # First calls do extra work, for example load scripts. It must not count as part of a scene.
            self._process.start(Program(WARM_UP, "warm", ClientState(), START))
            self._process.wait()
        return self._process

    def discard(self) -> None:
        """Close the current process. The next `process()` starts a new one."""
        if self._process is not None:
            self._process.close()
        self._process = None
