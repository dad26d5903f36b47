"""The Hypothesis state machine: its rules call every verb on the storage and on the oracle, in any order.

Arguments come from all fences, leases and revisions that the storage issued, the newest most often. So calls
also use stale numbers, and repeat earlier calls. Other rules move the clock, for example to the ms at which a
lease expires. Rules are synchronous; the runner of the session owns the event loop.
"""

from __future__ import annotations

import sys
from operator import itemgetter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Complete, Fail, LogLevel, QueueStep, SettingsPatch, Settlement
from dibs.model.results import State
from dibs_conformance.oracle.storage import STATES
from dibs_conformance.sequential import strategies as some
from dibs_conformance.sequential.lockstep import LawChecker, Lockstep, Reader, copy_and_compare
from dibs_conformance.sequential.lockstep.interruptions import RARELY
from dibs_conformance.sequential.session import ExampleSession, Issued
from dibs_conformance.target import OpenedStorage

#: 2026-01-01 UTC in ms. Any other time would do.
START = 1_767_225_600_000
EVERYWHERE = (*some.QUEUES, *(name + FAIL_SUFFIX for name in some.QUEUES))

LEVELS: tuple[LogLevel, ...] = ("runs", "runs", "all", "off")
#: The age of the issued value that a rule uses. 0 is the newest value, and the most frequent choice.
picks = st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3, 5, 8))
levels = st.sampled_from(LEVELS)
every_queue = st.sampled_from((*some.QUEUES[:1] * 4, some.QUEUES[1], EVERYWHERE[2]))
#: The limit of the step of each queue in a `serve`; None for no step.
step_limits = st.sampled_from((10, 0, None, 1, 3))
#: True: the next claim uses a live lease. False: it uses any lease, also an expired or unknown one.
mostly_true = st.sampled_from((True, True, True, True, False))


class LockstepMachine(RuleBasedStateMachine):
    """One example: a new location, and a random sequence of calls in it. A subclass sets `session`."""

    session: ExampleSession

    def __init__(self) -> None:
        super().__init__()
        self.issued = Issued()
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
            session.checker,
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

    def issued_run(self, pick: int) -> tuple[str, str, int]:
        runs = self.issued.runs
        return runs[-1 - pick % len(runs)]

    def issued_lease(self, pick: int) -> str:
        """Return the lease that was granted `pick` leases before the newest. For 8, return an unknown one."""
        leases = self.issued.leases
        return "0" * 32 if pick == 8 else leases[-1 - pick % len(leases)]

    def has_runs(self) -> bool:
        return bool(self.issued.runs)

    def settlements(self, data: st.DataObject, picked: list[int], queue: str) -> list[Settlement]:
        """Return settlements for some runs of one queue, sometimes with a stale fence."""
        runs = [run for run in map(self.issued_run, picked) if run[0] == queue]
        settle_actions = some.settle_actions(self.lockstep.now, queue, cross_queue=self.session.cross_queue)
        given = [Settlement(id=id, fence=fence, action=data.draw(settle_actions)) for _, id, fence in runs]
        return [without_retention(one) for one in given] if queue.endswith(FAIL_SUFFIX) else given

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    @rule(queue=some.queues, data=st.data())
    def enqueue(self, queue: str, data: st.DataObject) -> None:
        requests = data.draw(some.requests(self.lockstep.now))
        answers = self.lockstep.enqueue(queue, requests)
        accepted = [(r.job.id, a.revision) for r, a in zip(requests, answers, strict=True) if not a.repeated]
        self.issued.revisions += [(queue, id, revision) for id, revision in accepted]

    @rule(queue=every_queue, pick=picks, limit=some.limits, alive=mostly_true)
    def claim(self, queue: str, pick: int, limit: int, *, alive: bool) -> None:
        lease = self.live_lease(queue) if alive else self.issued_lease(pick)
        self.issued.add_claim(queue, self.lockstep.claim(queue, lease, limit))

    def live_lease(self, queue: str) -> str:
        """Return the newest lease. If that lease has expired or was dropped, grant a new one first."""
        lease = self.issued.leases[-1]
        if self.lockstep.oracle.queue(queue).lease(lease, self.lockstep.now) is None:
            self.grant(some.HOUR, some.HOLDERS[0])
        return self.issued.leases[-1]

    @precondition(has_runs)
    @rule(picked=st.lists(picks, min_size=1, max_size=3), data=st.data())
    def settle(self, picked: list[int], data: st.DataObject) -> None:
        queue = self.issued_run(picked[0])[0]
        self.lockstep.settle(queue, self.settlements(data, picked, queue))

    @precondition(has_runs)
    @rule(pick=picks, data=st.data())
    def settle_one(self, pick: int, data: st.DataObject) -> None:
        self.settle([pick], data)

    @precondition(has_runs)
    @rule(picked=st.lists(picks, min_size=1, max_size=3), data=st.data(), limit=some.limits)
    def settle_and_claim(self, picked: list[int], data: st.DataObject, limit: int) -> None:
        queue = self.issued_run(picked[0])[0]
        settlements = self.settlements(data, picked, queue)
        self.issued.add_claim(
            queue, self.lockstep.settle_and_claim(queue, settlements, self.live_lease(queue), limit)
        )

    @precondition(has_runs)
    @rule(
        picked=st.lists(picks, min_size=1, max_size=3),
        data=st.data(),
        limits=st.tuples(*[step_limits] * len(EVERYWHERE)),
        alive=mostly_true,
    )
    def serve(
        self, picked: list[int], data: st.DataObject, limits: tuple[int | None, ...], *, alive: bool
    ) -> None:
        lease = self.live_lease(EVERYWHERE[0]) if alive else self.issued_lease(picked[0])
        steps = [
            QueueStep(queue, self.settlements(data, picked, queue), limit)
            for queue, limit in sorted(zip(EVERYWHERE, limits, strict=True), key=itemgetter(0))
            if limit is not None
        ]
        if not steps:
            return
        if any(step.settlements for step in steps):
            # A claim of a fail job that the same call made would hide the job from the listing after it.
            steps = [replace(step, limit=0) if step.queue.endswith(FAIL_SUFFIX) else step for step in steps]
        for step, claim in zip(steps, self.lockstep.serve(steps, lease), strict=True):
            self.issued.add_claim(step.queue, claim)

    @precondition(has_runs)
    @rule(pick=picks, data=st.data())
    def finish(self, pick: int, data: st.DataObject) -> None:
        known = self.issued.revisions
        queue, id, revision = known[-1 - pick % len(known)]
        end = data.draw(some.ends(self.lockstep.now, queue, cross_queue=self.session.cross_queue))
        if not queue.endswith(FAIL_SUFFIX):
            self.lockstep.finish(queue, id, end, revision)

    # -- leases and time -----------------------------------------------------------------------------

    @rule(ttl=some.ttls, holder=st.sampled_from(some.HOLDERS))
    def grant(self, ttl: int, holder: str) -> None:
        self.issued.leases.append(self.lockstep.grant(EVERYWHERE, ttl, holder))

    @rule(pick=picks, ttl=some.ttls)
    def renew(self, pick: int, ttl: int) -> None:
        self.lockstep.renew(EVERYWHERE, self.issued_lease(pick), ttl)

    @rule(pick=picks, limit=some.limits)
    def drop(self, pick: int, limit: int) -> None:
        self.lockstep.drop(some.QUEUES, self.issued_lease(pick), limit)

    @rule(queue=every_queue, limit=some.limits)
    def reap(self, queue: str, limit: int) -> None:
        self.lockstep.reap(queue, limit)

    @rule(by=some.steps)
    def pass_time(self, by: int) -> None:
        self.lockstep.pass_time(by)
        self.lockstep.after_write(*some.QUEUES)

    @rule(queue=every_queue, pick=picks, late=st.sampled_from((0, 0, 1, -1)))
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

    # -- by id ---------------------------------------------------------------------------------------

    @rule(queue=some.queues, ids=some.some_ids, running=st.booleans())
    def cancel(self, queue: str, ids: list[str], *, running: bool) -> None:
        self.lockstep.cancel(queue, ids, running=running)

    @rule(queue=some.queues, id=some.ids, data=st.data())
    def amend(self, queue: str, id: str, data: st.DataObject) -> None:
        self.lockstep.amend(queue, id, data.draw(some.patches(self.lockstep.now)))

    @rule(queue=some.queues, ids=some.some_ids)
    def retry_failed(self, queue: str, ids: list[str]) -> None:
        self.lockstep.retry_failed(queue, ids)

    @rule(queue=some.queues, ids=st.lists(some.ids, min_size=1, max_size=1))
    def forget(self, queue: str, ids: list[str]) -> None:
        self.lockstep.forget(queue, ids)

    @precondition(has_runs)
    @rule(pick=picks, reported=st.sampled_from(some.REPORTS))
    def report(self, pick: int, reported: tuple[bytes | None, bytes | None]) -> None:
        self.lockstep.report(*self.issued_run(pick), *reported)

    # -- queues, listings, the log -------------------------------------------------------------------

    @rule(queue=some.queues, patch=some.settings_patches)
    def configure(self, queue: str, patch: SettingsPatch) -> None:
        self.lockstep.configure(queue, patch)

    @rule(queue=every_queue, limit=some.limits, whole=st.booleans())
    def prune(self, queue: str, limit: int, *, whole: bool) -> None:
        (self.lockstep.prune_all if whole else self.lockstep.prune)(queue, limit)

    @rule(queue=every_queue, state=st.sampled_from(STATES), limit=some.limits)
    def list(self, queue: str, state: State, limit: int) -> None:
        self.lockstep.list(queue, state, limit)

    @rule()
    def verify_all(self) -> None:
        """Compare the counts, the queues and all slots."""
        self.lockstep.counts(EVERYWHERE)
        self.lockstep.known_queues()
        self.lockstep.compare_slots(*EVERYWHERE)

    @rule(queue=every_queue, limit=some.limits, jump=st.sampled_from((False, False, False, True)))
    def events(self, queue: str, limit: int, *, jump: bool) -> None:
        if jump:
            self.lockstep.skip_to_latest(queue, self.readers[queue])
        self.lockstep.events(queue, self.readers[queue], limit)

    # -- locations -----------------------------------------------------------------------------------

    @rule(queue=every_queue, limit=some.limits)
    def move(self, queue: str, limit: int) -> None:
        """Export a queue into a second location, which must then hold the same jobs."""
        opened = OpenedStorage(self.session.locations, self.session.runner, self.session.locations.new())
        witness = LawChecker(laws=(), story=self.session.checker.story)
        other = Lockstep(opened, self.session.runner, witness, now=self.lockstep.now, compare_each=True)
        other.oracle.numbers = self.lockstep.oracle.numbers
        try:
            copy_and_compare(self.lockstep, other, queue, limit)
        finally:
            opened.close()

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


def without_retention(settlement: Settlement) -> Settlement:
    """Return the settlement without retention and follow-ups, for runs of a fail queue."""
    action = settlement.action
    if isinstance(action, Fail):
        action = Fail(error=action.error)
    elif isinstance(action, Complete):
        action = Complete(result=action.result)
    return Settlement(id=settlement.id, fence=settlement.fence, action=action)
