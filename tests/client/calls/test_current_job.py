"""The job of the running handler: its fields, progress and follow-ups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import Dibs, LeaseLost, NotRunning, Refused, current_job
from dibs.client.calls.current_job import CURRENT_JOB, CurrentJob, RunEnvironment
from dibs.client.claim import Claim
from dibs.model.job import Job, JobData
from dibs.storage.capabilities import Capabilities
from tests.client.manual_claims import claimed


@pytest.fixture
async def claim(app: Dibs) -> AsyncIterator[Claim]:
    queue = app.queue("q")
    await queue.enqueue(1, id="a", attributes={"who": ["me"]})
    async with claimed(queue) as claim:
        yield claim


@pytest.fixture
async def job(app: Dibs, claim: Claim) -> CurrentJob:
    return CurrentJob(RunEnvironment(app.storage, "q", asyncio.get_running_loop(), "pool"), claim._job, 12.5)


async def progress_of(app: Dibs) -> Any:
    status = await app.queue("q").get("a")
    return status.progress if status else None


async def test_it_says_what_it_is(job: CurrentJob, claim: Claim) -> None:
    assert (job.queue, job.id, job.fence, job.attempt) == ("q", "a", claim.fence, 1)
    assert (job.retries, job.stalls) == (0, 0)
    assert (job.deadline, job.attributes, job.resources) == (12.5, {"who": ["me"]}, "pool")


async def test_an_async_handler_awaits_its_progress(job: CurrentJob, app: Dibs) -> None:
    await job.progress({"done": 1})

    assert await progress_of(app) == {"done": 1}


async def test_a_def_handler_blocks_until_its_progress_is_kept(job: CurrentJob, app: Dibs) -> None:
    await asyncio.to_thread(job.progress, 0.5)

    assert await progress_of(app) == 0.5


async def test_a_handler_with_a_loop_of_its_own_may_await_there(job: CurrentJob, app: Dibs) -> None:
    async def inner() -> None:
        await job.progress(7)

    await asyncio.to_thread(asyncio.run, inner())

    assert await progress_of(app) == 7


async def test_progress_of_a_lost_job_is_told(job: CurrentJob, app: Dibs) -> None:
    await app.queue("q").forget("a")

    with pytest.raises(LeaseLost):
        await job.progress(1)
    with pytest.raises(LeaseLost):
        await asyncio.to_thread(job.progress, 1)


@pytest.mark.parametrize("value", [float("nan"), "x" * 2_000_000, object()])
async def test_progress_that_cannot_be_kept_is_refused_at_once(job: CurrentJob, value: Any) -> None:
    with pytest.raises(Refused):
        job.progress(value)


async def test_a_follow_up_is_collected_for_the_end(job: CurrentJob, app: Dibs) -> None:
    job.then(app.queue("q").bind(1, id="next"))
    job.then(app.queue("other").bind(2))

    assert [then.queue for then in job.follow_ups] == ["q", "other"]
    assert job.follow_ups[0].job.id == "next"


class OneQueue:
    """A storage without the capability cross_queue."""

    capabilities = Capabilities(cross_queue=False)

    async def report(self, *_: Any, **__: Any) -> Any: ...


async def test_a_follow_up_that_cannot_be_in_the_same_step_is_refused(claim: Claim, app: Dibs) -> None:
    job = CurrentJob(RunEnvironment(OneQueue(), "q", asyncio.get_running_loop()), claim._job, None)

    job.then(app.queue("q").bind(1))
    with pytest.raises(Refused, match="other"):
        job.then(app.queue("other").bind(1))
    with pytest.raises(Refused):
        job.then(app.queue("q").bind(1, request_key="k"))


async def test_a_request_to_stop_is_seen(job: CurrentJob) -> None:
    assert not job.cancelled
    job.request_cancel()

    assert job.cancelled


async def test_the_current_job_is_the_one_of_this_run(job: CurrentJob) -> None:
    with pytest.raises(NotRunning):
        current_job()
    token = CURRENT_JOB.set(job)

    assert current_job() is job
    CURRENT_JOB.reset(token)


async def test_only_an_active_job_runs(app: Dibs) -> None:
    job = Job(id="a", data=JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1)

    with pytest.raises(NotRunning):
        CurrentJob(RunEnvironment(app.storage, "q", asyncio.get_running_loop()), job, None)
