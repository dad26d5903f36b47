"""The base class of the random rules: the session, the numbers that the storage issued, and choices.

The class `...Rules` of each verb builds on `MachineBase`. The state machine of L0
(sequential/state_machine.py) inherits all of them.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field
from hypothesis import strategies as st

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Complete, Fail, Settlement
from dibs.model.results import ClaimResult
from dibs_conformance import strategies as some


@define
class Issued:
    """The fences, revisions and leases that the storage issued in this example, oldest first.

    They stay after their run has ended or their lease has expired, so that a rule can use stale ones.
    """

    runs: list[tuple[str, str, int]] = field(factory=list)
    revisions: list[tuple[str, str, int]] = field(factory=list)
    leases: list[str] = field(factory=list)

    def add_claim(self, queue: str, claim: ClaimResult) -> None:
        """Add the fences and revisions of the claimed jobs."""
        self.runs += [(queue, job.id, job.run.fence) for job in claim.jobs if job.run is not None]
        self.revisions += [(queue, job.id, job.revision) for job in claim.jobs]


class MachineBase:
    """One example: a random sequence of calls."""

    #: The ExampleSession. The type would be an import upwards, as that of `lockstep`.
    session: Any

    def __init__(self) -> None:
        super().__init__()
        self.issued = Issued()
        #: By queue: the verbs.events.Reader of its log.
        self.readers: dict[str, Any] = {}

    @property
    def lockstep(self) -> Any:
        """The `dibs_conformance.verbs.Lockstep` of the example."""
        raise NotImplementedError

    def issued_run(self, pick: int) -> tuple[str, str, int]:
        runs = self.issued.runs
        return runs[-1 - pick % len(runs)]

    def issued_lease(self, pick: int) -> str:
        """Return the lease that was granted `pick` leases before the newest. For 8, return an unknown one."""
        leases = self.issued.leases
        return "0" * 32 if pick == 8 else leases[-1 - pick % len(leases)]

    def live_lease(self, queue: str) -> str:
        """Return the newest lease. If that lease has expired or was dropped, grant a new one first."""
        lease = self.issued.leases[-1]
        if self.lockstep.oracle.queue(queue).lease(lease, self.lockstep.now) is None:
            self.issued.leases.append(self.lockstep.grant(some.EVERYWHERE, some.HOUR, some.HOLDERS[0]))
        return self.issued.leases[-1]

    def settlements(
        self, data: st.DataObject, picked: list[int], queue: str, *, cross_queue: bool = True
    ) -> list[Settlement]:
        """Return settlements for some runs of one queue, sometimes with a stale fence.

        With `cross_queue`, follow-ups may be for another queue, if the storage can do that.
        """
        runs = [run for run in map(self.issued_run, picked) if run[0] == queue]
        crossing = cross_queue and self.session.cross_queue
        settle_actions = some.settle_actions(self.lockstep.now, queue, cross_queue=crossing)
        given = [Settlement(id=id, fence=fence, action=data.draw(settle_actions)) for _, id, fence in runs]
        return [without_retention(one) for one in given] if queue.endswith(FAIL_SUFFIX) else given


def has_runs(machine: MachineBase) -> bool:
    """Return whether the storage has issued a run in this example."""
    return bool(machine.issued.runs)


def without_retention(settlement: Settlement) -> Settlement:
    """Return the settlement without retention and follow-ups, for runs of a fail queue."""
    action = settlement.action
    if isinstance(action, Fail):
        action = Fail(error=action.error)
    elif isinstance(action, Complete):
        action = Complete(result=action.result)
    return Settlement(id=settlement.id, fence=settlement.fence, action=action)
