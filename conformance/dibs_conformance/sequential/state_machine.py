"""The Hypothesis state machine: its rules call every verb on the storage and on the oracle, in any order.

Arguments come from all fences, leases and revisions that the storage issued, the newest most often. So calls
also use stale numbers, and repeat earlier calls. The modules of the verbs have their rules
(dibs_conformance/verbs). The rules here move the clock, for example to the ms at which a lease expires,
close, reopen and copy the storage, and bring an id into states that need several calls. Rules are
synchronous; the runner of the session owns the event loop.
"""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, Fail, LogLevel, SettingsPatch, Settlement
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import RARELY, has_runs
from dibs_conformance.sequential.moving import copy_and_compare
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.strategies import EVERYWHERE
from dibs_conformance.target import OpenedStorage
from dibs_conformance.verbs import Lockstep, VerbRules
from dibs_conformance.verbs.events import Reader

#: 2026-01-01 UTC in ms. Any other time would do.
START = 1_767_225_600_000

LEVELS: tuple[LogLevel, ...] = ("runs", "runs", "all", "off")
levels = st.sampled_from(LEVELS)


class LockstepMachine(VerbRules, RuleBasedStateMachine):
    """One example: a new location, and a random sequence of calls in it. A subclass sets `session`."""

    session: ExampleSession

    def __init__(self) -> None:
        super().__init__()
        self.readers = {queue: Reader() for queue in EVERYWHERE}
        self._lockstep: Lockstep | None = None

    @initialize(
        compare_each=st.sampled_from((True, True, True, False)),
        level=levels,
        age=some.ttls,
        handles=st.sampled_from((1, 2, 1)),
        interrupted=st.sampled_from((False, True, False)),
    )
    def open(self, *, compare_each: bool, level: LogLevel, age: int, handles: int, interrupted: bool) -> None:
        session = self.session
        session.begin()
        opened = OpenedStorage(
            session.locations,
            session.runner,
            session.locations.new(),
            handles=handles if session.handles else 1,
        )
        self._lockstep = Lockstep(
            opened,
            session.runner,
            session.story,
            now=START,
            compare_each=compare_each,
            interruptions=session.interruptions(RARELY) if interrupted else None,
        )
        if (level, age) != ("runs", some.HOUR):
            patch = SettingsPatch(log_level=level, request_key_age=age, log_age=24 * age)
            for queue in EVERYWHERE:
                self._lockstep.configure(queue, patch)
        self.grant(some.HOUR, some.HOLDERS[0])

    def teardown(self) -> None:
        if self._lockstep is None:
            return
        error = sys.exc_info()[1]
        try:
            if error is None:
                self.compare_everything(self._lockstep)
            self._lockstep.opened.close()
        finally:
            self.session.remember(error or sys.exc_info()[1])
            self.session.calls += self._lockstep.oracle.numbers.call

    def compare_everything(self, lockstep: Lockstep) -> None:
        """Compare all slots, counts and logs at the end of an example. Some examples compare only then."""
        lockstep.compare_slots(*EVERYWHERE)
        lockstep.counts(EVERYWHERE)
        for queue in EVERYWHERE:
            lockstep.events(queue, self.readers[queue], 100)

    # -- choices -------------------------------------------------------------------------------------

    @property
    def lockstep(self) -> Lockstep:
        assert self._lockstep is not None  # noqa: S101 - open comes first
        return self._lockstep

    @rule(by=some.steps)
    def pass_time(self, by: int) -> None:
        self.lockstep.pass_time(by)
        self.lockstep.after_write(*some.QUEUES)

    @rule(queue=some.every_queue, pick=some.picks, late=st.sampled_from((0, 0, 1, -1)))
    def pass_time_to_an_end(self, queue: str, pick: int, late: int) -> None:
        """Move the clock to the ms at which a lease, key or outcome expires or a job is due, or 1 ms off."""
        ends = self.lockstep.oracle.queue(queue).next_times(self.lockstep.now)
        if ends:
            self.pass_time(max(0, ends[pick % len(ends)] - self.lockstep.now + late))

    @precondition(has_runs)
    @rule(queue=some.queues, data=st.data(), back=st.sampled_from((1, 10_000)))
    def clock_steps_back(self, queue: str, data: st.DataObject, back: int) -> None:
        """Claim with a time before that of the last write, which must count as the time of the write."""
        self.enqueue(queue, data)
        lease = self.live_lease(queue)
        self.issued.add_claim(queue, self.lockstep.claim(queue, lease, 10, now=self.lockstep.now - back))

    # -- comparisons and locations -------------------------------------------------------------------

    @rule()
    def verify_all(self) -> None:
        """Compare the counts, the queues and all slots."""
        self.lockstep.counts(EVERYWHERE)
        self.lockstep.known_queues()
        self.lockstep.compare_slots(*EVERYWHERE)

    @rule(queue=some.every_queue, limit=some.limits)
    def move(self, queue: str, limit: int) -> None:
        """Export a queue into a second location, which must then hold the same jobs."""
        copy_and_compare(self.session, self.lockstep, queue, limit)

    @precondition(lambda self: self.session.durable)
    @rule()
    def reopen(self) -> None:
        """Close the storage, open it again, and compare all slots."""
        kept = [self.lockstep.log_offsets(queue) for queue in some.QUEUES]
        self.lockstep.opened.reopen()
        self.lockstep.record("reopen", {}, "opened again")
        self.lockstep.compare_slots(*EVERYWHERE)
        for queue, offsets in zip(some.QUEUES, kept, strict=True):
            self.lockstep.check_offsets(queue, offsets)

    @precondition(lambda self: self.session.compacts)
    @rule(restarts=st.booleans())
    def compact(self, *, restarts: bool) -> None:
        """Call `compact`, open the storage again in half of the cases, and compare all slots."""
        self.lockstep.interrupt("compact")
        if restarts and self.session.durable:
            self.reopen()
        self.lockstep.compare_slots(*EVERYWHERE)


class ScenarioMachine(LockstepMachine):
    """The state machine, with rules that make several calls."""

    @rule(queue=some.queues, data=st.data())
    def run(self, queue: str, data: st.DataObject) -> None:
        """Enqueue jobs and claim them at once."""
        self.enqueue(queue, data)
        self.claim(queue, 0, 10, alive=True)

    @rule(queue=some.queues, id=some.ids, data=st.data(), more=st.integers(1, 3), amend=st.booleans())
    def contend(self, queue: str, id: str, *, data: st.DataObject, more: int, amend: bool) -> None:
        """Enqueue the id of an active run again, sometimes amend it, then settle the run."""
        run = self.run_of(queue, id, data)
        more_requests = [data.draw(some.requests_for(id, self.lockstep.now)) for _ in range(more)]
        self.lockstep.enqueue(queue, more_requests)
        if amend:
            self.amend(queue, id, data)
        if run is not None:
            settle_actions = some.settle_actions(
                self.lockstep.now, queue, cross_queue=self.session.cross_queue
            )
            twice = range(1 + data.draw(st.booleans()))
            self.lockstep.settle(
                queue, [Settlement(id=id, fence=run, action=data.draw(settle_actions)) for _ in twice]
            )

    @rule(
        queue=some.queues,
        id=some.ids,
        data=st.data(),
        next_call=st.sampled_from(("enqueue", "reject", "retry", "repeat", "amend")),
        later=st.sampled_from((0, 0, 5, some.HOUR, 8 * some.DAY)),
    )
    def after_an_end(self, queue: str, id: str, *, data: st.DataObject, next_call: str, later: int) -> None:
        """End a run, then make a call that its outcome may affect, before or after the outcome expires."""
        run = self.run_of(queue, id, data)
        if run is None:
            return
        ends = some.ends(self.lockstep.now, queue, cross_queue=self.session.cross_queue)
        end = Fail(error=data.draw(some.errors)) if next_call in ("retry", "reject") else data.draw(ends)
        self.lockstep.settle(queue, [Settlement(id=id, fence=run, action=end)])
        if later:
            self.pass_time(later)
        if next_call == "retry":
            self.lockstep.retry_failed(queue, [id])
        elif next_call == "amend":
            self.amend(queue, id, data)
        elif next_call == "repeat":
            self.lockstep.settle(queue, [Settlement(id=id, fence=run, action=data.draw(ends))])
        else:
            conflict = data.draw(st.sampled_from(some.CONFLICTS[:3]))
            self.lockstep.enqueue(
                queue,
                [
                    EnqueueRequest(
                        job=NewJob(id=id), on_conflict=conflict, want_outcome=data.draw(st.booleans())
                    )
                ],
            )

    def run_of(self, queue: str, id: str, data: st.DataObject) -> int | None:
        """Enqueue this id and claim the due jobs. Return the newest fence that the id ever had, or None."""
        self.lockstep.enqueue(queue, [EnqueueRequest(job=NewJob(id=id, data=data.draw(some.data)))])
        self.claim(queue, 0, 100, alive=True)
        return self.newest_fence(queue, id)

    def newest_fence(self, queue: str, id: str) -> int | None:
        fences = [fence for owner, one, fence in self.issued.runs if (owner, one) == (queue, id)]
        return fences[-1] if fences else None
