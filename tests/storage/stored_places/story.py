"""A fixed series of calls that leaves jobs in every state, outcomes, logs, settings and request keys.

tools/write_stored_places.py makes these calls on each storage, and keeps the data that the storage then has.
The clock is manual, so two runs differ only in the values that a storage draws at random: the ids of leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dibs.client.calls.task_payload import TaskPayload
from dibs.client.options.serde import JsonSerde
from dibs.maintenance.ticks import enqueue_missing_tick
from dibs.model.job import Error, Job, JobData, NewJob, OutcomeRetention, Overrides
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.retry import Exponential
from dibs.model.schedule import Every, Schedule
from dibs.storage.protocol import Storage

#: The time of the first call, in ms since the epoch: June 2025.
START: Final = 1_750_000_000_000
HOUR: Final = 3_600_000
YEAR: Final = 365 * 24 * HOUR
#: The main queue, and one whose name needs an escape in the keys of Redis.
JOBS: Final = "jobs"
ODD: Final = "ä:{b}%c d"
LIMITED: Final = "limited"
PAUSED: Final = "paused"
TICKS: Final = "ticks"
ERROR: Final = Error(
    type="ValueError",
    message="no such städt",
    traceback="Traceback …",
    cause=Error(type="KeyError", message="'x'"),
    kind="permanent",
)
#: Every kind of end is kept for a year, except those of single jobs.
KEPT: Final = OutcomeRetention(completed=YEAR, failed=None, cancelled=YEAR)


def payload(*args: Any, **kwargs: Any) -> bytes:
    """Return the payload of a call of a task, as the client encodes it."""
    return JsonSerde().encode(TaskPayload(list(args), kwargs))


class Story:
    """The calls on one storage, at times that grow by one second per call."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.now = START
        #: Ids of leases by name, which later callers of a stored place need.
        self.leases: dict[str, str] = {}

    async def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        self.now += 1000
        return await getattr(self.storage, verb)(*args, now=self.now, **kwargs)

    async def enqueue(
        self,
        id: str,
        *,
        queue: str = JOBS,
        rule: OnConflict | None = None,
        key: str | None = None,
        run_at: int | None = None,
        delay: int | None = None,
        **data: Any,
    ) -> None:
        job = NewJob(id=id, data=JobData(**{"payload": payload(id), **data}), run_at=run_at, delay=delay)
        request = EnqueueRequest(job=job, on_conflict=rule or Update(), request_key=key)
        await self.call("enqueue", queue, [request])

    async def grant(self, name: str, queues: Sequence[str] = (JOBS,), ttl: int = HOUR) -> str:
        granted = await self.call("grant", list(queues), ttl, f"host:{name}")
        self.leases[name] = granted.lease
        return str(granted.lease)

    async def run(self, id: str, lease: str, *, queue: str = JOBS, **data: Any) -> Job:
        """Enqueue a job with the highest priority, and claim it."""
        await self.enqueue(id, queue=queue, **{"priority": 1000, **data})
        return await self.claim(id, lease, queue=queue)

    async def claim(self, id: str, lease: str, *, queue: str = JOBS) -> Job:
        claimed = await self.call("claim", queue, lease, 1)
        job: Job = claimed.jobs[0]
        assert id == job.id
        return job

    async def settle(self, job: Job, action: SettleAction, *, queue: str = JOBS) -> None:
        [result] = await self.call(
            "settle", queue, [Settlement(id=job.id, fence=job.run.fence if job.run else 0, action=action)]
        )
        assert result.status in ("done", "returned", "handed_off")


async def write(storage: Storage) -> Story:
    """Make all calls on an empty storage with a manual clock. Return the story, with its time and leases."""
    story = Story(storage)
    await write_log_and_settings(story)
    await write_outcomes(story)
    await write_returned(story)
    await write_active(story)
    await write_waiting(story)
    await write_other_queues(story)
    return story


async def write_log_and_settings(story: Story) -> None:
    """Set the queue up, and write a log whose first entries are trimmed."""
    await story.call(
        "configure",
        JOBS,
        SettingsPatch(
            log_level="all", log_age=HOUR, log_bytes=1_000_000, request_key_age=YEAR, retention=KEPT
        ),
    )
    for number in range(5):
        await story.enqueue(f"old-{number}")
    await story.call("forget", JOBS, [f"old-{number}" for number in range(5)])
    await story.enqueue("expired", retention=OutcomeRetention(cancelled=1000))
    story.now += 2 * HOUR
    await story.call("prune", JOBS, 1000)
    await story.call("configure", JOBS, SettingsPatch(log_age=YEAR))
    # The outcome of this job has expired by the end of the story, and is not pruned.
    await story.call("cancel", JOBS, ["expired"])


async def write_outcomes(story: Story) -> None:
    lease = await story.grant("ended")
    then = FollowUp(queue=JOBS, job=NewJob(id="followed", data=JobData(payload=payload("followed"))))
    await story.settle(await story.run("completed", lease), Complete(result=b'{"n":1}', then=(then,)))
    await story.settle(await story.run("none", lease), Complete(result=b"null"))
    forever = OutcomeRetention(completed=None, keep_payload=("completed",))
    await story.settle(await story.run("for-ever", lease), Complete(result=b"1", retention=forever))
    attributes = {"user": b'"\xc3\xa4"', "tags": b"[1,2]"}
    await story.settle(await story.run("failed", lease, attributes=attributes), Fail(error=ERROR))
    await story.call("configure", JOBS, SettingsPatch(fail_handler=True))
    await story.settle(
        await story.run("failed-handled", lease, attributes=attributes, run_at=START + 7),
        Fail(error=ERROR),
    )
    await story.call("configure", JOBS, SettingsPatch(fail_handler=False))
    bare = OutcomeRetention(failed=YEAR, keep_payload=())
    await story.settle(await story.run("failed-bare", lease), Fail(error=ERROR, retention=bare))
    await story.settle(await story.run("cancelled", lease), Cancelled())
    await story.settle(await story.run("again", lease), Complete(result=b'"first"'))
    await story.enqueue("again")
    not_kept = OutcomeRetention(completed=0)
    await story.settle(await story.run("not-kept", lease, retention=not_kept), Complete(result=b"1"))
    await story.enqueue("cancelled-waiting")
    await story.call("cancel", JOBS, ["cancelled-waiting"])


async def write_returned(story: Story) -> None:
    """Leave waiting jobs that came back from runs, with their counts and errors."""
    lease = await story.grant("returning")
    late = 3 * YEAR // 1000 * 1000
    retry = RetryLater(delay=late, error=Error(type="OSError", message="later"))
    await story.settle(await story.run("retried", lease), retry)
    timed_out = RetryLater(cause="timeout", delay=late, error=Error(type="Timeout", kind="timeout"))
    await story.settle(await story.run("timed-out", lease), timed_out)
    await story.settle(await story.run("released", lease, run_at=START), Release())
    await story.call("amend", JOBS, "released", JobPatch(priority=-1000, attributes={"seen": b"true"}))
    short = await story.grant("stalling", ttl=2500)
    await story.run("stalled", short)
    story.now += 5000
    reaped = await story.call("reap", JOBS, 10)
    assert ["stalled"] == [job.id for job in reaped]
    await story.call("amend", JOBS, "stalled", JobPatch(priority=-1000))


async def write_active(story: Story) -> None:
    """Leave runs under live, expired and dropped leases, handed-off runs, successors and progress."""
    lease = await story.grant("live", ttl=3 * HOUR)
    await story.run("active", lease)
    reported = await story.run("reported", lease, attributes={"a": b"1"})
    assert reported.run is not None
    await story.call("report", JOBS, "reported", reported.run.fence, b'{"done":3,"of":7}')
    await story.run("cancel-requested", lease)
    await story.call("cancel", JOBS, ["cancel-requested"], running=True)
    await story.run("blocked", lease)
    await story.enqueue("blocked", priority=3, run_at=story.now + HOUR)
    await story.enqueue("blocked", rule=Update(data=False, run_at="later"), run_at=story.now + 2 * HOUR)
    await story.enqueue("blocked", rule=Update(run_at="earlier", reset_counts=False), run_at=story.now)
    await story.run("dropped-successor", lease)
    for _ in range(3):
        await story.enqueue("dropped-successor")
        await story.call("cancel", JOBS, ["dropped-successor"])
    handed = await story.run("handed-off", lease)
    await story.settle(handed, HandOff())
    await story.enqueue("handed-off", priority=1)
    await story.settle(await story.run("handed-off-alone", lease), HandOff())
    expired = await story.grant("expired", ttl=4500)
    await story.run("lost", expired)
    await story.run("lost-blocked", expired)
    dropped = await story.grant("dropped")
    await story.run("dropped-1", dropped)
    await story.run("dropped-2", dropped)
    await story.call("drop", [JOBS], dropped, 1)
    story.now += 10_000


async def write_waiting(story: Story) -> None:
    await story.enqueue("lost-blocked")
    await story.enqueue("due")
    await story.enqueue("scheduled", run_at=story.now + YEAR // 2)
    await story.enqueue("delayed", delay=HOUR)
    await story.enqueue("urgent", priority=900)
    await story.enqueue("unimportant", priority=-900)
    await story.enqueue("ü/é 1", attributes={"ä": b'{"deep":[null]}'})
    await story.enqueue(
        "overridden",
        overrides=Overrides(
            timeout=60_000, max_retries=None, max_stalls=2, backoff=Exponential(first=1, cap=9), lease=5000
        ),
        retention=OutcomeRetention(completed=YEAR, keep_payload=("completed", "cancelled")),
    )
    await story.enqueue("merged", key="merge-1")
    await story.enqueue("merged", rule=Update(data=False, run_at="never"), key="merge-2")
    await story.enqueue("merged", rule=Reject(failed=True), key="merge-3")


async def write_other_queues(story: Story) -> None:
    await story.call("configure", LIMITED, SettingsPatch(max_active=2, log_level="runs"))
    lease = await story.grant("limited", [LIMITED, ODD], ttl=3 * HOUR)
    for number in range(3):
        await story.enqueue(f"l-{number}", queue=LIMITED)
    for number in range(2):
        await story.claim(f"l-{number}", lease, queue=LIMITED)
    assert () == (await story.call("claim", LIMITED, lease, 1)).jobs
    for number in range(3):
        await story.enqueue(f"o-{number}", queue=ODD)
    await story.settle(await story.claim("o-0", lease, queue=ODD), Complete(result=b"[]"), queue=ODD)
    await story.claim("o-1", lease, queue=ODD)
    await story.enqueue("p-0", queue=PAUSED)
    never = OutcomeRetention(completed=0, failed=0, cancelled=0, keep_payload=())
    await story.call("configure", PAUSED, SettingsPatch(paused=True, log_level="off", retention=never))
    story.now += 1000
    await story.call("counts", [TICKS])
    schedule = Schedule(times=Every(length=HOUR), data=JobData(payload=payload()))
    await enqueue_missing_tick(story.storage, TICKS, schedule)
