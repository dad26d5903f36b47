"""The Hypothesis state machine: its rules call every verb on the storage and on the oracle, in any order.

Arguments come from all fences, leases and revisions that the storage issued, the newest most often. So calls
also use stale numbers, and repeat earlier calls. The modules of the verbs have their rules
(dibs_conformance/verbs). The rules here move the clock, for example to the ms at which a lease expires,
close, reopen and copy the storage, bring an id into states that need several calls, and make wide calls. The
ids of a batch are in different states, so that each item has its own result. Limits are small and keys are
few, so that most claims meet full and closed keys. Rules are synchronous; the runner of the session owns the
event loop.
"""

from __future__ import annotations

import sys
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from dibs.model.job import Error, Job, JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    HandOff,
    LogLevel,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import RARELY, has_runs
from dibs_conformance.oracle.changes import opens_at
from dibs_conformance.sequential.scripts import copy_and_compare
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.strategies import EVERYWHERE
from dibs_conformance.target import OpenedStorage
from dibs_conformance.verbs import Lockstep, VerbRules
from dibs_conformance.verbs.actions import START
from dibs_conformance.verbs.events import Reader

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


#: The ids of the batches. Single calls use other ids, so that each rule knows the states of these.
WIDE_IDS = ("w1", "w2", "w3", "w4", "é5", "w6")
#: Verbs on a list of ids.
verbs = st.sampled_from(("cancel", "cancel running", "retry_failed", "forget", "settle", "enqueue"))
#: A list of ids in any order, with repetitions.
batches_of_ids = st.lists(st.sampled_from((*WIDE_IDS, "unknown")), min_size=3, max_size=7)
ENDS: tuple[End, ...] = (Complete(result=b"1"), Fail(error=Error(type="Oops")), Cancelled())
#: All actions with which a settlement may be repeated.
REPEATS: tuple[SettleAction, ...] = (*ENDS, RetryLater(), Release(), HandOff())
#: The call that ends an active run, or returns its job to waiting.
ways = st.sampled_from(("settle", "finish", "cancel", "return", "reap", "drop"))


class WideMachine(ScenarioMachine):
    """The state machine, with rules that make wide calls."""

    @rule(queue=some.queues, verb=verbs, ids=batches_of_ids, data=st.data())
    def batch(self, queue: str, verb: str, ids: list[str], data: st.DataObject) -> None:
        """Bring ids into different states, then pass a list of them to one call."""
        runs = self.spread_out(queue)
        if verb.startswith("cancel"):
            self.lockstep.cancel(queue, ids, running=verb != "cancel")
        elif verb == "retry_failed":
            self.lockstep.retry_failed(queue, ids)
        elif verb == "forget":
            self.lockstep.forget(queue, ids)
        elif verb == "settle":
            actions = st.sampled_from(REPEATS)
            settled = [Settlement(id=id, fence=runs.get(id, 1), action=data.draw(actions)) for id in ids]
            self.lockstep.settle(queue, settled)
        else:
            self.lockstep.enqueue(queue, [data.draw(some.requests_for(id, self.lockstep.now)) for id in ids])

    def spread_out(self, queue: str) -> dict[str, int]:
        """Bring one id into each state: waiting, active, handed off, ended, retrying. Return the fences."""
        self.enqueue_wide(queue, WIDE_IDS)
        runs = self.claim_wide(queue, 5)
        actions: tuple[SettleAction, ...] = (*ENDS, HandOff(), RetryLater(delay=some.HOUR))
        settled = [
            Settlement(id=id, fence=fence, action=action)
            for (id, fence), action in zip(runs.items(), actions, strict=False)
        ]
        if settled:
            self.lockstep.settle(queue, settled)
        return runs

    def enqueue_wide(self, queue: str, ids: tuple[str, ...], priority: int = 0) -> None:
        data = JobData(payload=b"w", priority=priority)
        self.lockstep.enqueue(queue, [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids])

    def claim_wide(self, queue: str, limit: int) -> dict[str, int]:
        """Claim under a live lease. Return the fence of each claimed id."""
        claimed = self.lockstep.claim(queue, self.live_lease(queue), limit)
        self.issued.add_claim(queue, claimed)
        return {job.id: job.run.fence for job in claimed.jobs if job.run is not None}

    @rule(
        queue=some.queues,
        way=ways,
        end=st.sampled_from(ENDS),
        again=st.booleans(),
        later=st.sampled_from((0, 0, 5, some.HOUR)),
        order=st.permutations(REPEATS),
    )
    def repeat_each_end(
        self, queue: str, way: str, end: End, *, again: bool, later: int, order: list[SettleAction]
    ) -> None:
        """End a run in one of the ways, then repeat every settlement with its fence, all in one call.

        With `again`, the id has a new job before. `later` are the ms before the repeats.
        """
        id = "w1"
        self.grant(10 if way == "reap" else some.HOUR, some.HOLDERS[0])
        lease = self.issued.leases[-1]
        self.enqueue_wide(queue, (id,), priority=1000)
        claimed = self.lockstep.claim(queue, lease, 1)
        self.issued.add_claim(queue, claimed)
        runs = [(job, job.run.fence) for job in claimed.jobs if job.id == id and job.run is not None]
        for job, fence in runs:
            if way in ("settle", "finish"):
                self.end_run(queue, end, fence, job, hands_off=way == "finish")
            else:
                self.cancel_run(queue, way, lease, Settlement(id=id, fence=fence, action=RetryLater()))
            if again:
                self.enqueue_wide(queue, (id,))
            if later:
                self.pass_time(later)
            repeats = [Settlement(id=id, fence=fence, action=action) for action in order]
            self.lockstep.settle(queue, repeats)
            self.lockstep.finish(queue, id, end, job.revision)

    def end_run(self, queue: str, end: End, fence: int, job: Job, *, hands_off: bool) -> None:
        """End a run by its fence, or hand it off and finish it by its revision."""
        action = HandOff() if hands_off else end
        self.lockstep.settle(queue, [Settlement(id=job.id, fence=fence, action=action)])
        if hands_off:
            self.lockstep.finish(queue, job.id, end, job.revision)

    def cancel_run(self, queue: str, way: str, lease: str, returning: Settlement) -> None:
        """Request the cancellation of a run, then end it in one of the ways. `returning` would return it."""
        if way == "cancel":
            self.lockstep.settle(queue, [replace(returning, action=HandOff())])
        self.lockstep.cancel(queue, [returning.id], running=True)
        if way == "return":
            self.lockstep.settle(queue, [returning])
        elif way == "reap":
            self.pass_time(10)
            self.lockstep.reap(queue, 3)
        elif way == "drop":
            self.lockstep.drop([queue], lease, 3)


KEYS: Final = ("k", "m", 'n{}\n"\\é')
PER_KEY: Final = (None, 1, 1, 2, 3)
RATES: Final = (
    None,
    StartRate(1, 10),
    StartRate(1, 10, 2),
    StartRate(3, 10, 2),
    StartRate(3, 1, 3),
    StartRate(2, 1000, 4),
)
per_key = st.sampled_from(PER_KEY)
rates = st.sampled_from(RATES)
bounds = st.sampled_from((None, 1, 2, 3, 5, 8))
#: Keys of jobs: mostly the same one, sometimes none.
keys = st.sampled_from((KEYS[0], KEYS[0], KEYS[0], KEYS[1], KEYS[1], KEYS[2], None))
limit_patches = st.one_of(
    st.builds(SettingsPatch, per_key=per_key),
    st.builds(SettingsPatch, rate=rates),
    st.builds(SettingsPatch, key_rate=rates),
    st.builds(SettingsPatch, per_key=per_key, rate=rates, key_rate=rates),
    st.builds(SettingsPatch, max_waiting=bounds, when_full=st.sampled_from(("refuse", "drop_new"))),
    st.just(SettingsPatch(per_key=None, rate=None, key_rate=None, max_waiting=None)),
)

shares = st.dictionaries(st.sampled_from(KEYS), st.sampled_from((None, 0, 1, 2, 3)), max_size=3)
turn_patches = st.one_of(
    st.just(SettingsPatch(fair=True)),
    shares.map(lambda changed: SettingsPatch(fair=True, shares=changed)),
    st.builds(SettingsPatch, shares=shares),
    st.builds(SettingsPatch, shares=shares),
    st.just(SettingsPatch(fair=False)),
)


def has_turns(machine: LimitMachine) -> bool:
    return machine.session.fair


def has_limits(machine: LimitMachine) -> bool:
    return machine.session.limits


def is_limited(machine: LimitMachine) -> bool:
    settings = [machine.lockstep.oracle.queue(queue).settings for queue in some.QUEUES]
    return any(one.has_limits or one.fair for one in settings)


class LimitMachine(WideMachine):
    """The state machine, with rules about keys and limits."""

    @precondition(has_limits)
    @rule(queue=some.queues, patch=limit_patches)
    def limit(self, queue: str, patch: SettingsPatch) -> None:
        self.lockstep.configure(queue, patch)

    @precondition(has_turns)
    @rule(queue=some.queues, patch=turn_patches)
    def take_turns(self, queue: str, patch: SettingsPatch) -> None:
        self.lockstep.configure(queue, patch)

    @precondition(is_limited)
    @rule(queue=some.queues, data=st.data())
    def fill_keys(self, queue: str, data: st.DataObject) -> None:
        """Enqueue several ids with few keys. Some of them wait or run already."""
        ids = data.draw(st.lists(st.sampled_from((*WIDE_IDS, *some.IDS[:2])), min_size=2, max_size=6))
        self.lockstep.enqueue(queue, [self.draw_keyed(data, id) for id in ids])

    def draw_keyed(self, data: st.DataObject, id: str) -> EnqueueRequest:
        """Draw an enqueue of this id with a key. One in three has also a priority, a delay and a rule."""
        held = JobData(payload=id.encode(), key=data.draw(keys))
        if data.draw(st.sampled_from((True, True, False))):
            return EnqueueRequest(job=NewJob(id=id, data=held))
        priority, delay = data.draw(st.sampled_from((0, 1, -5))), data.draw(st.sampled_from((0, 1, 5, 10)))
        on_conflict = data.draw(some.conflicts)
        job = NewJob(id=id, data=replace(held, priority=priority), delay=delay)
        return EnqueueRequest(job=data.draw(some.fitting(job, on_conflict)), on_conflict=on_conflict)

    @precondition(is_limited)
    @rule(queue=some.queues, late=st.sampled_from((0, 0, 1, -1)), limit=some.limits)
    def claim_at_an_opening(self, queue: str, late: int, limit: int) -> None:
        """Move the clock to the next ms at which a clock opens, or 1 ms off, and claim."""
        openings = opening_times(self.lockstep, queue)
        if openings:
            self.pass_time(max(0, min(openings) - self.lockstep.now + late))
        self.claim(queue, 0, limit, alive=True)


def opening_times(lockstep: Lockstep, queue: str) -> list[int]:
    """Return the times later than now at which a clock of the queue allows the next start."""
    known = lockstep.oracle.queue(queue)
    times = [opens_at(known, key) for key in (None, *known.starts.by_key)]
    return [time for time in times if time > lockstep.now]
