"""Random actions on an index, drawn by Hypothesis: every verb, over a few ids, with time passing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention, Slot
from dibs.model.limits import LIMITS
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    Reject,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
    Update,
)
from dibs.model.results import ExportRecord
from dibs.storage.indexed import by_id, claiming, enqueueing, settling, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex

QUEUES = ("q", "r")
IDS = ("a", "b", "../c")
ERROR = Error(type="Oops", message="no")
RETENTIONS = (
    None,
    OutcomeRetention(completed=0, failed=0, cancelled=0),
    OutcomeRetention(completed=20, failed=None),
)

#: An action and its arguments. It finds its jobs in the index, so it can be replayed on any index.
Action = tuple[str, tuple[Any, ...]]

queues = st.sampled_from(QUEUES)
ids = st.sampled_from(IDS)
soon = st.integers(0, 30)
data = st.builds(
    JobData,
    payload=st.sampled_from((b"", b"1", b"2" * 50)),
    attributes=st.sampled_from(({}, {"k": b"1"})),
    priority=st.sampled_from((0, 0, 1, -5)),
    key=st.sampled_from((None, None, "k", "l")),
    retention=st.sampled_from(RETENTIONS),
)
new_jobs = st.builds(NewJob, id=ids, data=data, delay=st.one_of(st.none(), soon))
run_at_rules = st.sampled_from(("always", "never", "later", "earlier"))
conflicts = st.one_of(
    st.builds(Update, data=st.booleans(), run_at=run_at_rules),
    st.builds(Update, run_at=st.one_of(run_at_rules, st.just("wake")), create=st.sampled_from((False,))),
    st.builds(Update, data=st.booleans(), run_at=run_at_rules, supersede=st.sampled_from((True,))),
    st.builds(Reject, failed=st.booleans()),
)
requests = st.builds(
    EnqueueRequest, job=new_jobs, on_conflict=conflicts, request_key=st.sampled_from((None, None, "k", "l"))
)
then = st.lists(st.builds(FollowUp, queue=queues, job=new_jobs), max_size=1).map(tuple)
retentions = st.sampled_from(RETENTIONS)
hows: st.SearchStrategy[SettleAction] = st.one_of(
    st.builds(Complete, result=st.just(b"3"), then=then, retention=retentions),
    st.builds(Fail, error=st.just(ERROR), retention=retentions),
    st.builds(
        RetryLater, delay=soon, cause=st.sampled_from(("error", "timeout", "stall")), error=st.just(ERROR)
    ),
    st.sampled_from((Cancelled(), Cancelled(error=ERROR), Release(), Release(delay=9), HandOff())),
    st.builds(Release, delay=soon, parked=st.sampled_from((True,))),
)
patches = st.sampled_from(
    (
        JobPatch(priority=7),
        JobPatch(delay=12),
        JobPatch(attributes={"n": b"2"}),
        JobPatch(payload=b"new"),
        JobPatch(retention=OutcomeRetention(completed=5)),
    )
)
settings = st.sampled_from(
    (
        SettingsPatch(paused=True),
        SettingsPatch(paused=False, log_level="all"),
        SettingsPatch(max_active=1, log_bytes=300),
        SettingsPatch(max_active=None, retention=OutcomeRetention(completed=15, failed=15, cancelled=15)),
        SettingsPatch(log_level="off", request_key_age=10),
        SettingsPatch(fail_handler=True, log_results=5),
        SettingsPatch(per_key=1),
        SettingsPatch(per_key=2, key_rate=StartRate(1, 20)),
        SettingsPatch(rate=StartRate(2, 30, 2)),
        SettingsPatch(per_key=None, rate=None, key_rate=None),
        SettingsPatch(fair=True, shares={"k": 2}),
        SettingsPatch(fair=True, shares={"k": 0, "l": None}),
        SettingsPatch(shares={"k": None, "l": 2}),
        SettingsPatch(fair=False),
    )
)

acts: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("enqueue"), st.tuples(queues, st.lists(requests, min_size=1, max_size=3))),
    st.tuples(st.just("claim"), st.tuples(queues, st.integers(1, 3))),
    st.tuples(st.just("settle"), st.tuples(queues, st.lists(hows, min_size=1, max_size=2))),
    st.tuples(st.just("settle"), st.tuples(queues, st.lists(hows, min_size=1, max_size=2))),
    st.tuples(st.just("turn"), st.tuples(queues, st.lists(hows, min_size=1, max_size=2), st.integers(1, 3))),
    st.tuples(st.just("tick"), st.tuples(st.integers(1, 40))),
    st.tuples(st.just("grant"), st.tuples(st.integers(1, 60))),
    st.tuples(st.sampled_from(("renew", "drop", "reap", "prune")), st.tuples(queues, st.integers(1, 3))),
    st.tuples(st.just("cancel"), st.tuples(queues, st.lists(ids, max_size=2), st.booleans())),
    st.tuples(st.just("amend"), st.tuples(queues, ids, patches)),
    st.tuples(st.sampled_from(("forget", "retry_failed", "move")), st.tuples(queues, ids)),
    st.tuples(st.just("configure"), st.tuples(queues, settings)),
    st.tuples(st.just("report"), st.tuples(queues, st.just(b"0.5"), st.sampled_from((None, b"", b"memo")))),
)
#: Long sequences: by default Hypothesis draws five actions on average, too few to share an id.
sequences = st.lists(acts, min_size=10, max_size=50)


def apply(index: Index, one: Action) -> object:
    """Do the action as a storage would, except for ending the step."""
    name, words = one
    return ACTS[name](index, *words)


def run(index: Index, sequence: list[Action]) -> None:
    """Do each action as its own step."""
    for one in sequence:
        apply(index, one)
        index.end_step()


def _tick(index: Index, ms: int) -> None:
    index.now += ms


def _grant(index: Index, ttl: int) -> object:
    return claiming.grant(index, QUEUES, f"lease-{index.next_number()}", ttl, "h")


def newest_lease(queue: QueueIndex) -> str:
    """Return the id of the lease granted last, or an unknown id."""
    return max(queue.leases, default="none")


def _claim(index: Index, queue: str, limit: int) -> object:
    return claiming.claim(index, queue, newest_lease(index.find_queue(queue)), limit)


def _renew(index: Index, queue: str, ttl: int) -> object:
    return claiming.renew(index, [queue], newest_lease(index.find_queue(queue)), ttl * 10)


def _drop(index: Index, queue: str, limit: int) -> object:
    return claiming.drop(index, [queue], newest_lease(index.find_queue(queue)), limit)


def _settle(index: Index, queue: str, hows: list[SettleAction]) -> object:
    active = [slot.current for slot in index.find_queue(queue).slots.values() if slot.current is not None]
    runs = [(job.id, job.run.fence) for job in active if job.run is not None]
    named = [Settlement(id=id, fence=fence, action=how) for (id, fence), how in zip(runs, hows, strict=False)]
    return settling.settle(index, queue, named, LIMITS)


def _turn(index: Index, queue: str, hows: list[SettleAction], limit: int) -> object:
    """Settle and claim in one step, as `settle_and_claim` does."""
    return _settle(index, queue, hows), _claim(index, queue, limit)


def _report(index: Index, queue: str, progress: bytes | None, memo: bytes | None) -> object:
    for slot in list(index.find_queue(queue).slots.values()):
        if slot.current is not None and slot.current.run is not None:
            settling.report(index, queue, slot.current.id, slot.current.run.fence, progress, memo)
    return None


def _move(index: Index, queue: str, id: str) -> object:
    """Move an id with all its parts from one queue into the other."""
    slot = index.find_queue(queue).slots.get(id, Slot())
    other = QUEUES[1 - QUEUES.index(queue)]
    return whole_queue.import_(index, other, [ExportRecord(id=id, slot=slot)]) if slot != Slot() else None


ACTS: dict[str, Callable[..., object]] = {
    "enqueue": enqueueing.enqueue,
    "claim": _claim,
    "settle": _settle,
    "turn": _turn,
    "tick": _tick,
    "grant": _grant,
    "renew": _renew,
    "drop": _drop,
    "reap": claiming.reap,
    "prune": whole_queue.prune,
    "cancel": by_id.cancel,
    "amend": lambda index, queue, id, patch: by_id.amend(index, queue, id, patch, LIMITS),
    "forget": lambda index, queue, id: by_id.forget(index, queue, [id]),
    "retry_failed": lambda index, queue, id: by_id.retry_failed(index, queue, [id], 0),
    "move": _move,
    "configure": whole_queue.configure,
    "report": _report,
}
