"""Rules about keys and limits, for storages that claim the capability `limits`.

The limits are small and the keys are few, so that most claims meet full and closed keys.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch, StartRate, Update
from dibs_conformance import strategies as some
from dibs_conformance.oracle.admission import opens_at
from dibs_conformance.sequential.wide_calls import WIDE_IDS, WideMachine
from dibs_conformance.verbs import Lockstep

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

    @precondition(has_limits)
    @rule(queue=some.queues, patch=first_limits, data=st.data())
    def work_under_limits(self, queue: str, patch: SettingsPatch, data: st.DataObject) -> None:
        """Set limits, fill keys, and claim before and after runs are settled."""
        self.lockstep.configure(queue, patch)
        self.fill_keys(queue, data)
        self.claim(queue, 0, data.draw(some.limits), alive=True)
        if self.issued.runs:
            self.settle([0, 1], data)
        self.claim(queue, 0, 10, alive=True)

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
