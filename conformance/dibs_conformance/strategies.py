"""Hypothesis strategies for the arguments of a storage.

Most strategies sample from small tables that contain every kind of value. Sampling is fast and shrinks to the
plainest value. With few ids, two calls often use the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.model.job import FAIL_SUFFIX, Error, JobData, NewJob, OutcomeRetention
from dibs.model.overrides import BACKOFF, COUNT, DECLARATIONS, DURATION, TIME, Kind, Overrides
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    Settings,
    SettingsPatch,
    SettleAction,
    Update,
)
from dibs.model.retry import Exponential, Fixed, Immediate, RetryCause

SECOND = 1000
HOUR = 3600 * SECOND
DAY = 24 * HOUR

QUEUES = ("q", 'we{ird}:q*"\n')
IDS = ("a", "b", "c{d}:'\"\n\\%é", "i" * 510 + "é")
HOLDERS = ("ann", 'b"o\nb')
#: The queues of an example and their fail queues.
EVERYWHERE = (*QUEUES, *(name + FAIL_SUFFIX for name in QUEUES))

RETENTIONS: tuple[OutcomeRetention | None, ...] = (
    None,
    OutcomeRetention(completed=0, failed=0, cancelled=0),
    OutcomeRetention(completed=None, failed=None, cancelled=None),
    OutcomeRetention(completed=5 * SECOND),
    OutcomeRetention(failed=10, keep_payload=()),
    OutcomeRetention(completed=HOUR, cancelled=0, keep_payload=("completed", "failed", "cancelled")),
)
#: Retentions for patches. They set every field, so that merging and replacing have the same result. A probe
#: tests that a patch replaces.
WHOLE_RETENTIONS = (
    OutcomeRetention(completed=HOUR, failed=HOUR, cancelled=HOUR, keep_payload=("failed",)),
    OutcomeRetention(completed=0, failed=0, cancelled=0, keep_payload=("failed",)),
    OutcomeRetention(completed=None, failed=None, cancelled=None, keep_payload=()),
    OutcomeRetention(completed=10, failed=10, cancelled=10, keep_payload=("completed", "failed")),
)

#: Two values of each kind of override, and one beyond its limit.
OVERRIDE_VALUES: Mapping[Kind, tuple[Any, Any, Any]] = {
    DURATION: (5, SECOND, 100_000 * DAY + 1),
    COUNT: (0, 3, -1),
    TIME: (0, 253_370_764_799_999, 253_370_764_800_000),
    BACKOFF: (Exponential(1.5, 60.0), Fixed(2.5), Fixed(100_000 * 86_400 + 1)),
}


def full_overrides(choice: int) -> Overrides:
    """Return overrides with each field at the first (0) or the second (1) value of its kind."""
    return Overrides(**{name: OVERRIDE_VALUES[one.kind][choice] for name, one in DECLARATIONS.items()})


def removed_limits() -> Overrides:
    """Return overrides with None in each field that may be None."""
    none: dict[str, Any] = {name: None for name, one in DECLARATIONS.items() if one.may_be_none}
    return Overrides(**none)


DATA = (
    JobData(),
    JobData(payload=b"1"),
    JobData(payload=b'{"a": [1, 2.50, null], "b": {}, "c": []}'),
    JobData(payload=bytes(range(256))),
    JobData(payload=b"2", priority=1),
    JobData(payload=b"3", priority=-1000),
    JobData(payload=b"4", priority=1000),
    JobData(payload=b"5", attributes={"a": b"1", "trace{}": b'"x"'}),
    JobData(payload=b"6", attributes={"a": b"9007199254740992", "n\né": b'{"k":[]}'}, priority=1),
    JobData(payload=b"7", overrides=full_overrides(0)),
    JobData(payload=b"8", overrides=full_overrides(1)),
    JobData(payload=b"9", overrides=removed_limits()),
    JobData(payload=b"9", overrides=Overrides(backoff=Immediate()), retention=RETENTIONS[1]),
    *(JobData(payload=b"r", retention=retention) for retention in RETENTIONS[2:]),
    JobData(payload=b"\x00\xff" * 3000),
    JobData(payload=b"k", key="k"),
    JobData(payload=b"k", key="k", priority=1, attributes={"a": b"1"}),
    JobData(payload=b"m", key='n{}\n"\\é'),
    JobData(key="é" * 64, retention=RETENTIONS[3]),
)

CONFLICTS: tuple[OnConflict, ...] = (
    Update(),
    Reject(),
    Reject(failed=True),
    *(
        Update(data=data, run_at=run_at, reset_counts=reset)
        for data in (True, False)
        for run_at in ("always", "never", "later", "earlier")
        for reset in (None, True, False)
    ),
    Update(supersede=True),
    Update(supersede=True),
    Update(supersede=True, data=False, run_at="never"),
    Update(supersede=True, run_at="later", reset_counts=False),
    *(
        Update(create=False, run_at=run_at, reset_counts=reset)
        for run_at in ("always", "never", "later", "earlier")
        for reset in (None, True, False)
    ),
    *(
        Update(create=False, run_at="wake", reset_counts=reset)
        for reset in (None, None, None, None, None, True)
    ),
)
#: The attributes of update-only requests. Two of the long values do not fit into one job.
SIGNALS: tuple[Mapping[str, bytes], ...] = (
    *({}, {}, {"a": b"3"}, {"s\n": b"[1]"}, {"s\n": b'"{}"', "a": b"null"}),
    *({"long": b'"%b"' % (b"x" * 40_000)}, {"longer": b'"%b"' % (b"\xc3\xa9" * 20_000)}),
)

ERRORS = (
    Error(type="ValueError"),
    Error(type="app.Oops", message="no\nway é", traceback="line 1\nline 2", cause=Error(type="KeyError")),
    Error(type="Long", message="m" * 20_000, traceback="t" * 20_000),
)
RESULTS = (None, b"", b"null", b'{"ok": true}', bytes(range(256)))

#: The progress and the memo of a report. An empty memo removes the memo.
REPORTS: tuple[tuple[bytes | None, bytes | None], ...] = (
    (b"0.5", None),
    (b'{"of": [1, 2]}', None),
    (None, b"m"),
    (None, bytes(range(256))),
    (b"0.25", b"both"),
    (None, b""),
)

#: The output of a report, mostly none. Three of the large ones exceed what an id keeps.
OUTPUTS: tuple[tuple[bytes, ...], ...] = (
    *((),) * 6,
    (b"c",),
    (b"c",),
    (b"", bytes(range(256)), b"last"),
    (b"x" * 65_536,) * 7,
)

CAUSES: tuple[RetryCause, ...] = ("error", "timeout", "stall")

# A value that is listed several times is drawn more often: most examples use one id of one queue.
ids = st.sampled_from((*IDS[:1] * 4, *IDS[:2], *IDS))
queues = st.sampled_from((*QUEUES[:1] * 3, *QUEUES))
every_queue = st.sampled_from((*QUEUES[:1] * 4, QUEUES[1], EVERYWHERE[2]))
#: The age of the issued value that a rule uses. 0 is the newest value, and the most frequent choice.
picks = st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3, 5, 8))
picked = st.lists(picks, min_size=1, max_size=3)
#: True: the next claim uses a live lease. False: it uses any lease, also an expired or unknown one.
mostly_true = st.sampled_from((True, True, True, True, False))
data = st.sampled_from(DATA)
conflicts = st.sampled_from(CONFLICTS)
retentions = st.sampled_from(RETENTIONS)
errors = st.sampled_from(ERRORS)
results = st.sampled_from(RESULTS)
keys = st.sampled_from((None, None, None, "k1", "k{2}\n", "k" * 128))
#: Costs of settled runs, in thousandths of a start.
costs = st.sampled_from((None, None, 0, 0, 1, 500, 999, 1000, 1001, 2500, 5000, 10**9))
#: Delays, and differences between a time and now, in ms. Most are shorter than a step of the clock.
offsets = st.sampled_from((0, 0, 1, 1, 5, 10, 1000, HOUR))
limits = st.sampled_from((10, 10, 1, 2, 3, 5, 100))
#: One to three ids for one call. An id may occur twice.
some_ids = st.lists(ids, min_size=1, max_size=3)
batches = st.sampled_from((1, 1, 1, 2, 3))


@st.composite
def new_jobs(draw: st.DrawFn, now: int) -> NewJob:
    """Draw a job that is due now, after a delay, or at an absolute time near `now`."""
    when = draw(st.sampled_from(("now", "now", "now", "delay", "run_at", "past")))
    id, held = draw(ids), draw(data)
    if when == "delay":
        return NewJob(id=id, data=held, delay=draw(offsets))
    if when == "run_at":
        return NewJob(id=id, data=held, run_at=now + draw(offsets))
    if when == "past":
        return NewJob(id=id, data=held, run_at=max(0, now - draw(offsets)))
    return NewJob(id=id, data=held)


@st.composite
def requests_for(draw: st.DrawFn, id: str, now: int) -> EnqueueRequest:
    """Draw one enqueue of this id, with any conflict rule and a time before or after `now`."""
    on_conflict = draw(conflicts)
    job = NewJob(id=id, data=draw(data), run_at=now + draw(offsets) - draw(offsets))
    return EnqueueRequest(job=draw(fitting(job, on_conflict)), on_conflict=on_conflict)


@st.composite
def jobs_with_conflicts(draw: st.DrawFn, now: int) -> dict[str, Any]:
    """Draw the fields `job` and `on_conflict` of a request."""
    on_conflict, job = draw(conflicts), draw(new_jobs(now))
    return {"job": draw(fitting(job, on_conflict)), "on_conflict": on_conflict}


@st.composite
def fitting(draw: st.DrawFn, job: NewJob, on_conflict: OnConflict) -> NewJob:
    """Return the job as a request with this rule may have it.

    An update-only request has no data but attributes, and one that wakes a parked job has no time.
    """
    if not isinstance(on_conflict, Update) or on_conflict.create:
        return job
    if on_conflict.run_at == "wake":
        job = replace(job, run_at=None, delay=None)
    return replace(job, data=JobData(attributes=draw(st.sampled_from(SIGNALS))))


@st.composite
def requests(draw: st.DrawFn, now: int) -> list[EnqueueRequest]:
    """Draw a small batch of enqueues. An id may occur twice."""
    return [
        EnqueueRequest(
            **draw(jobs_with_conflicts(now)),
            request_key=draw(keys),
            want_outcome=draw(st.booleans()),
        )
        for _ in range(draw(batches))
    ]


@st.composite
def follow_ups(draw: st.DrawFn, now: int, queue: str, *, cross_queue: bool) -> tuple[FollowUp, ...]:
    """Draw follow-ups: mostly none, sometimes two, with `cross_queue` also for another queue."""
    return tuple(
        FollowUp(
            queue=draw(queues) if cross_queue else queue,
            **draw(jobs_with_conflicts(now)),
        )
        for _ in range(draw(st.sampled_from((0, 0, 0, 0, 1, 2))))
    )


@st.composite
def ends(draw: st.DrawFn, now: int, queue: str, *, cross_queue: bool) -> End:
    """Draw a Complete, Fail or Cancelled with all its fields."""
    kind = draw(st.sampled_from((Complete, Fail, Cancelled)))
    kept = draw(retentions)
    if kind is Cancelled:
        return Cancelled(retention=kept, error=draw(st.sampled_from((None, *ERRORS))))
    then = draw(follow_ups(now, queue, cross_queue=cross_queue))
    if kind is Complete:
        return Complete(result=draw(results), then=then, retention=kept)
    return Fail(error=draw(errors), then=then, retention=kept)


@st.composite
def retries(draw: st.DrawFn, now: int) -> RetryLater:
    cause = draw(st.sampled_from(CAUSES))
    error = draw(st.sampled_from((*ERRORS[:2], None)))
    when = draw(st.sampled_from(("now", "delay", "run_at")))
    if when == "delay":
        return RetryLater(cause=cause, error=error, delay=draw(offsets))
    if when == "run_at":
        return RetryLater(cause=cause, error=error, run_at=now + draw(offsets))
    return RetryLater(cause=cause, error=error)


@st.composite
def releases(draw: st.DrawFn, now: int) -> Release:
    when = draw(st.sampled_from(("as before", "as before", "delay", "run_at", "parked", "parked")))
    if when == "as before":
        return Release()
    if when == "delay":
        return Release(delay=draw(offsets), parked=draw(st.booleans()))
    return Release(run_at=now + draw(offsets), parked=when == "parked")


@st.composite
def settle_actions(draw: st.DrawFn, now: int, queue: str, *, cross_queue: bool) -> SettleAction:
    """Draw any settle action; ends and returns are equally frequent."""
    kind = draw(st.sampled_from(("end", "end", "retry", "retry", "release", "hand_off")))
    if kind == "end":
        return draw(ends(now, queue, cross_queue=cross_queue))
    if kind == "retry":
        return draw(retries(now))
    return draw(releases(now)) if kind == "release" else HandOff()


@st.composite
def patches(draw: st.DrawFn, now: int) -> JobPatch:
    """Draw a patch of one field, or of all fields."""
    kind = draw(st.sampled_from(("attributes", "retention", "lease", "time", "all")))
    attributes = draw(st.sampled_from(({"a": b"2"}, {"z\n": b"[]"}, {"a": b"null", "b": b'"{}"'})))
    kept = draw(st.sampled_from(WHOLE_RETENTIONS))
    priority = draw(st.sampled_from((0, 1, -5)))
    if kind == "attributes":
        return JobPatch(attributes=attributes)
    if kind == "retention":
        return JobPatch(retention=kept)
    lease = draw(st.sampled_from((1, 1000, 8 * DAY)))
    if kind == "lease":
        return JobPatch(lease=lease)
    if kind == "time":
        return draw(
            st.sampled_from(
                (JobPatch(run_at=now + 5), JobPatch(delay=7), JobPatch(run_at=now, priority=priority))
            )
        )
    return JobPatch(
        attributes=attributes, payload=b"amended", delay=1, priority=priority, retention=kept, lease=lease
    )


settings_patches = st.sampled_from(
    (
        SettingsPatch(paused=False, max_active=None),
        SettingsPatch(paused=False, max_active=None),
        SettingsPatch(paused=True),
        SettingsPatch(paused=False),
        SettingsPatch(max_active=1),
        SettingsPatch(max_active=2),
        SettingsPatch(max_active=3),
        SettingsPatch(log_level="all"),
        SettingsPatch(log_level="runs"),
        SettingsPatch(log_level="off"),
        SettingsPatch(log_bytes=2 * Settings().log_bytes),
        SettingsPatch(log_bytes=300),
        SettingsPatch(fail_handler=True),
        SettingsPatch(fail_handler=True, log_results=4096),
        SettingsPatch(fail_handler=False),
        SettingsPatch(log_results=4),
        SettingsPatch(log_results=0),
        *(SettingsPatch(retention=retention) for retention in WHOLE_RETENTIONS),
    )
)
#: Steps of the clock in ms. The longest one is longer than the 7 days for which failed outcomes are kept.
steps = st.sampled_from((1, 1, 4, 5, 5, 10, 10, 999, 1000, SECOND * 5, HOUR, DAY, 8 * DAY))
ttls = st.sampled_from((HOUR, HOUR, 10, 1000))
