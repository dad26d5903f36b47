"""Rules with wide calls, and rules about keys and limits, for storages with the capability `limits`.

The ids of a batch are in different states, so that each item has its own result. A storage that gives a
result to the wrong item, or stops at one of them, returns other results than the oracle. The limits are small
and the keys are few, so that most claims meet full and closed keys.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from dibs.model.job import Error, Job, JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    HandOff,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
    Update,
)
from dibs_conformance import strategies as some
from dibs_conformance.oracle.changes import opens_at
from dibs_conformance.sequential.state_machine import ScenarioMachine
from dibs_conformance.verbs import Lockstep

#: The ids of the batches. Single calls use other ids, so that each rule knows the states of these.
WIDE_IDS = ("w1", "w2", "w3", "w4", "é5", "w6")
PRIORITIES = st.sampled_from((0, 0, 1, -1, 5))
portions = st.sampled_from((2, 3, 4, 5))
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
        """Let some ids wait, run, be handed off, end in each way and wait for a retry. Return the fences."""
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
#: Keys of jobs: mostly the same one, sometimes none.
keys = st.sampled_from((KEYS[0], KEYS[0], KEYS[0], KEYS[1], KEYS[1], KEYS[2], None))
limit_patches = st.one_of(
    st.builds(SettingsPatch, per_key=per_key),
    st.builds(SettingsPatch, rate=rates),
    st.builds(SettingsPatch, key_rate=rates),
    st.builds(SettingsPatch, per_key=per_key, rate=rates, key_rate=rates),
    st.just(SettingsPatch(per_key=None, rate=None, key_rate=None)),
)
#: The limits that a history sets before it fills keys: always one at least.
first_limits = st.sampled_from(
    (
        SettingsPatch(per_key=1),
        SettingsPatch(per_key=2),
        SettingsPatch(key_rate=RATES[2]),
        SettingsPatch(rate=RATES[1], per_key=1),
        SettingsPatch(rate=RATES[4], key_rate=RATES[1]),
        SettingsPatch(per_key=1, key_rate=RATES[3], max_active=2),
    )
)


def has_limits(machine: LimitMachine) -> bool:
    return machine.session.limits


def is_limited(machine: LimitMachine) -> bool:
    return any(machine.lockstep.oracle.queue(queue).settings.has_limits for queue in some.QUEUES)


class LimitMachine(WideMachine):
    """The state machine, with rules about keys and limits."""

    @precondition(has_limits)
    @rule(queue=some.queues, patch=limit_patches)
    def limit(self, queue: str, patch: SettingsPatch) -> None:
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
        if isinstance(on_conflict, Update) and not on_conflict.create:
            held, priority = JobData(), 0  # an update-only request has no data
        job = NewJob(id=id, data=replace(held, priority=priority), delay=delay)
        return EnqueueRequest(job=job, on_conflict=on_conflict)

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
