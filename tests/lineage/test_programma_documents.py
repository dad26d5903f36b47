"""Programma: the examples and the plans of its README, and the creation of its table."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import UTC, datetime

import pytest

from dibs import Dibs, Queue, Reject, Retention, Status, StorageError
from dibs.storage.registry import parse_scheme
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import claim_one, running_worker, set_handler
from tests.lineage.storage_urls import BLOCK_CREATION

# -- creation --------------------------------------------------------------------------------------------


async def test_a_creation_that_fails_is_raised_and_leaves_nothing(
    storage_url: str, request: pytest.FixtureRequest
) -> None:
    """The storage finds an object with a name that it needs. After its removal the storage can be created."""
    scheme = parse_scheme(storage_url)
    if scheme in BLOCK_CREATION:
        unblock = BLOCK_CREATION[scheme](storage_url, request)
        for _ in range(2):
            with pytest.raises(StorageError):
                await Dibs(storage_url).open()
        unblock()

    async with Dibs(storage_url) as app:
        await app.queue("q").enqueue(1, id="a")
        assert (scheme in BLOCK_CREATION) == app.storage.capabilities.durable
        assert 1 == (await claim_one(app.queue("q"))).data


# -- attributes ------------------------------------------------------------------------------------------


async def test_attributes_of_an_ended_job_stay(queue: Queue) -> None:
    """The end keeps the error and the attributes. An amend after the end changes the attributes, too."""
    await queue.enqueue(1, id="a", attributes={"tenant": 7})
    await (await claim_one(queue)).fail("no such address")

    assert "amended" == await queue.amend("a", attributes={"seen": True})
    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ({"tenant": 7, "seen": True}, "no such address") == (status.attributes, status.error.message)


# -- the examples ----------------------------------------------------------------------------------------


async def submit_handed_off(mail: Queue, other: Queue) -> None:
    """Give each handed-off job to another queue system, which knows it by id and revision, as in the docs."""
    async for job in mail.list("handed_off"):
        submitted = {"id": job.id, "revision": job.revision, "data": job.data}
        await other.enqueue(submitted, id=f"{job.id}@{job.revision}", on_conflict=Reject())


async def test_jobs_are_fanned_out_to_another_system(app: Dibs, other_url: str) -> None:
    """Jobs are handed off to workers of another storage, which end the jobs here, as done or as failed."""
    mail = app.queue("mail")
    await mail.enqueue_many([mail.bind({"to": name}, id=name) for name in ("ada", "bob")])
    async with Dibs(other_url) as elsewhere:
        async with mail.receive(wait=0) as claims:
            async for claim in claims:
                await claim.hand_off()
                await submit_handed_off(mail, elsewhere.queue("bull"))
        assert 2 == (await elsewhere.queue("bull").counts()).waiting
        assert ["handed_off"] * 2 == [status.state async for status in mail.list("active")]
        async with elsewhere.queue("bull").receive(wait=0) as tasks:
            async for task in tasks:
                job = task.data
                error = ValueError("no such address") if job["id"] == "bob" else None
                assert "done" == await mail.finish(job["id"], job["revision"], "sent", error=error)
                await task.complete()

    ada, bob = await mail.get("ada"), await mail.get("bob")
    assert ada is not None
    assert bob is not None
    assert bob.error is not None
    assert ("completed", "sent") == (ada.state, ada.result)
    assert ("failed", "no such address") == (bob.state, bob.error.message)


#: Hands a job off, and is killed before it gives the job to the other system.
KILLED = """
import asyncio, os, signal, sys
from dibs import Dibs

async def main():
    async with Dibs(sys.argv[1]) as app, app.queue("mail").receive(wait=0) as claims:
        await (await anext(claims)).hand_off()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_job_is_submitted_whose_holder_was_killed_after_the_hand_off(
    storage_url: str, app: Dibs, other_url: str
) -> None:
    """No lease brings it back. The list of handed-off jobs has it, and a second reading adds nothing."""
    async with Dibs(other_url) as elsewhere:
        mail, bull = app.queue("mail"), elsewhere.queue("bull")
        await mail.enqueue({"to": "ada"}, id="ada")
        if parse_scheme(storage_url) == "memory":
            # Its jobs end with the process, so the holder is a task that stops here.
            await (await claim_one(mail)).hand_off()
        else:
            killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, storage_url)
            assert -signal.SIGKILL == await asyncio.wait_for(killed.wait(), 60)
        for _ in range(2):
            await submit_handed_off(mail, bull)
        task = await claim_one(bull)
        answers = [await mail.finish(task.data["id"], task.data["revision"], "sent") for _ in range(2)]
        await task.complete()
        await submit_handed_off(mail, bull)
        status = await mail.get("ada")

        assert status is not None
        assert ("completed", "sent", 0) == (status.state, status.result, (await bull.counts()).waiting)
        assert "done" == answers[0]


async def test_a_holder_may_decide_on_retries_by_itself(queue: Queue) -> None:
    """An attribute of the job limits its attempts, and the holder sets the pause between them."""
    await queue.enqueue({"token": "1"}, id="a", attributes={"max_attempts": 3})
    pauses = []
    async with queue.receive(wait=0) as claims:
        async for claim in claims:
            if claim.attempt < claim.attributes["max_attempts"]:
                pauses.append(claim.attempt)
                await claim.retry(delay=0)
            else:
                await claim.fail("gave up")

    status = await queue.get("a")
    assert status is not None
    assert ([1, 2], "failed", 3, 2) == (pauses, status.state, status.attempts, status.retries)


async def test_a_job_may_be_years_ahead(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Other jobs run before such a job, and its time is kept to the millisecond."""
    set_handler(queue)
    at = datetime(2199, 8, 27, 20, 2, 18, 255_000, UTC)
    await queue.enqueue(1, id="later", run_at=at)
    ticket = await queue.enqueue(2, id="now")
    async with running_worker(app):
        assert 2 == await ticket.result(scripted_handlers.TIMEOUT)

    status = await queue.get("later")
    assert status is not None
    assert (["now"], at) == (record.ran, status.run_at)


# -- retention -------------------------------------------------------------------------------------------


async def test_ended_jobs_can_be_kept_with_their_data(queue: Queue) -> None:
    """A kept outcome has what a row of programma's table has: data, attributes, times and state, for ever."""
    await queue.configure(
        retention=Retention(completed=None, failed=None, keep_payload=("completed", "failed"))
    )
    await queue.enqueue({"to": "x"}, id="a", attributes={"tenant": 7})
    await (await claim_one(queue)).complete()

    status = await queue.get("a")
    assert status is not None
    assert ("completed", None) == (status.state, status.expires_at)
    assert ({"to": "x"}, {"tenant": 7}) == (status.data, status.attributes)
    assert await queue.forget("a")


async def test_each_queue_has_a_time_to_live_of_its_own(app: Dibs) -> None:
    """programma planned this. By default, dibs keeps completed jobs for an hour, failed ones for a week."""
    short, usual = app.queue("short"), app.queue("usual")
    await short.configure(retention=Retention(completed=60))
    seconds = []
    for queue in (short, usual):
        for id in ("completed", "failed"):
            await queue.enqueue(1, id=id)
            claim = await claim_one(queue)
            await (claim.complete() if id == "completed" else claim.fail("no"))
            seconds.append(seconds_kept(await queue.get(id)))

    assert [60, 604_800, 3600, 604_800] == seconds


def seconds_kept(status: Status | None) -> float:
    assert status is not None
    assert status.expires_at is not None
    assert status.ended_at is not None
    return (status.expires_at - status.ended_at).total_seconds()
