"""Applications on each storage: opening, errors, waits, events, claims and hand-offs."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys

import pytest

from dibs import (
    ConfigurationError,
    Dibs,
    JobCancelled,
    JobEnded,
    JobFailed,
    NotRunning,
    OutcomeNotKept,
    Queue,
    Refused,
    Reject,
    StorageError,
    UnknownOption,
    WaitTimeout,
    open_storage,
)
from dibs.client.connection.coalesced_calls import storage_limits
from dibs.errors import DibsError
from dibs.model.limits import LIMITS
from dibs.storage.registry import parse_scheme
from tests.lineage import scripted_handlers
from tests.lineage.blocked_creation import BLOCK_CREATION
from tests.lineage.scripted_handlers import claim_and_die, claim_one


async def test_a_place_is_a_url(storage_url: str, other_url: str) -> None:
    """Two apps with the same URL share their jobs; another URL or queue has other jobs."""
    async with Dibs(storage_url) as one, Dibs(storage_url) as two, Dibs(other_url) as elsewhere:
        await one.queue("q").enqueue(1, id="a")

        assert await two.queue("q").get("a") is not None
        assert await two.queue("r").get("a") is None
        assert await two.queue("Q").get("a") is None
        assert await elsewhere.queue("q").get("a") is None


async def test_an_app_can_be_opened_again(storage_url: str) -> None:
    """An app can be closed and opened again, and finds its jobs."""
    app = Dibs(storage_url)
    for number in range(3):
        async with app:
            await app.queue("q").enqueue(number)
            assert number + 1 == (await app.queue("q").counts()).waiting


async def test_closing_twice_is_closing(storage_url: str) -> None:
    """Closing twice is allowed; each later call raises NotRunning."""
    app = Dibs(storage_url)
    await app.open()
    await asyncio.gather(app.close(), app.close())
    with pytest.raises(NotRunning):
        await app.queue("q").enqueue(1)


async def test_a_closed_storage_says_so(storage_url: str) -> None:
    storage = open_storage(storage_url)
    with pytest.raises(NotRunning):
        await storage.counts(["q"])
    async with storage:
        await storage.counts(["q"])
    with pytest.raises(NotRunning):
        await storage.counts(["q"])


async def test_what_cannot_be_opened_is_raised(storage_url: str) -> None:
    """The call that opens the storage raises the error."""
    app = Dibs(storage_url, nonsense=True)
    with pytest.raises(UnknownOption):
        await app.queue("q").enqueue(1)
    with pytest.raises(UnknownOption):
        async with app:
            pass


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


async def test_many_may_open_a_new_place_at_once(storage_url: str) -> None:
    """One process creates the schema, and all of them can use it."""

    async def use(number: int) -> None:
        async with open_storage(storage_url) as storage:
            await storage.counts(["q"])

    await asyncio.gather(*(use(number) for number in range(5)))


def test_limits_are_the_same_whoever_opens_it(app: Dibs) -> None:
    """Promise 8: all storages have the same limits."""

    assert storage_limits(app.storage) == LIMITS


async def test_the_errors_are_one_tree(app: Dibs, queue: Queue) -> None:
    """Errors of a job's end derive from JobEnded; other errors do not."""
    for kind in (JobFailed, JobCancelled, OutcomeNotKept):
        assert issubclass(kind, JobEnded)
    assert all(issubclass(kind, DibsError) for kind in (JobEnded, WaitTimeout, Refused, ConfigurationError))
    assert not issubclass(JobEnded, WaitTimeout)
    assert issubclass(WaitTimeout, TimeoutError)
    ticket = await queue.enqueue(1, id="a")
    await ticket.cancel()
    with pytest.raises(JobEnded) as ended:
        await ticket.result(0)
    assert ("q", "a") == (ended.value.queue, ended.value.id)


HOSTILE = (
    *("it's", "'; drop table jobs; --", '"}]', "{q}", "$1", "%(x)s", "\\u0027", "ключ", "a:b/c\nd"),
    *("../../etc/passwd", "a:b:c", "a b", "€🙂", ".", "con"),
)


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_of_a_caller_is_ever_code(app: Dibs, text: str) -> None:
    """Any text is stored unchanged as attribute, value, data, id or queue, and found by waits and events."""
    queue, other = app.queue(f"q {text}"), app.queue("other")
    await other.enqueue("untouched", id="other")
    ticket = await queue.enqueue(text, id=text, attributes={text: text})
    await queue.amend(text, attributes={f"{text}2": [text]})
    status = await queue.get(text)

    assert status is not None
    assert {text: text, f"{text}2": [text]} == status.attributes
    waiting = asyncio.ensure_future(ticket.result(scripted_handlers.TIMEOUT))
    await asyncio.sleep(0)
    claim = await claim_one(queue)
    assert (text, text) == (claim.id, claim.data)
    await claim.complete(text)
    assert text == await waiting
    assert [text] == [ended.id async for ended in queue.list("completed")]
    assert text == (await scripted_handlers.read_events(queue, 1))[0].id
    assert await queue.forget(text)
    assert 1 == (await other.counts()).waiting


def test_a_wait_lasts_60_s_by_default(queue: Queue) -> None:
    for call in (queue.ticket("a", 0).result, queue.enqueue_and_wait):
        assert 60 == inspect.signature(call).parameters["wait"].default


async def test_no_end_is_missed_between_the_enqueue_and_the_wait(queue: Queue) -> None:
    """The job may end before, during or after the beginning of the wait, with a large result, too."""
    for turns in range(12):
        ticket = await queue.enqueue(turns, id=str(turns))
        claim = await claim_one(queue)
        ending = asyncio.ensure_future(claim.complete("x" * 200_000))
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(scripted_handlers.TIMEOUT):
            assert 200_000 == len(await ticket.result(60))
        await ending


@pytest.mark.parametrize("state", ["waiting", "blocked", "active"])
async def test_a_waiter_hears_of_a_cancel(queue: Queue, state: str) -> None:
    """The wait raises JobCancelled at once."""
    ticket = await queue.enqueue(1, id="a")
    claim = await claim_one(queue) if state != "waiting" else None
    if state == "blocked":
        ticket = await queue.enqueue(2, id="a")
    waiting = asyncio.ensure_future(ticket.result(scripted_handlers.TIMEOUT))
    await asyncio.sleep(0)
    await queue.cancel("a", running=state == "active")
    if claim and state == "active":
        await claim.release()

    with pytest.raises(JobCancelled):
        await waiting


async def test_a_waiter_gets_the_result_of_the_run_after_a_stall(queue: Queue, app: Dibs) -> None:
    """The wait lasts until the second run, after the lease of a dead worker has expired."""
    ticket = await queue.enqueue(1, id="a")
    waiting = asyncio.ensure_future(ticket.result(scripted_handlers.TIMEOUT))
    await claim_and_die(app)
    async with asyncio.timeout(scripted_handlers.TIMEOUT), queue.receive(1, lease=3) as claims:
        claim = await anext(claims)
        await claim.complete(f"run {claim.attempt} after {claim.stalls} stall")

    assert "run 2 after 1 stall" == await waiting


async def test_events_cross_connections(storage_url: str, app: Dibs, queue: Queue) -> None:
    """Another app on the same storage receives all events, also of retries and cancels."""
    if not app.storage.capabilities.shared:
        storage_url = app.url
    async with (
        asyncio.timeout(scripted_handlers.TIMEOUT),
        Dibs(storage_url) as other,
        other.queue("q").events() as events,
    ):
        await queue.enqueue(1, id="a")
        await (await claim_one(queue)).retry(delay=0)
        await queue.cancel("a")
        heard = [await anext(events), await anext(events)]

    assert [("retried", 1), ("cancelled", 0)] == [(event.kind, event.attempt) for event in heard]


async def test_a_claim_by_hand_asks_for_the_time_it_needs(app: Dibs, queue: Queue) -> None:
    """receive(lease=...) sets the lease, unless the job has its own; extend() prolongs it."""
    await queue.enqueue(1, lease=1.5)
    await queue.enqueue(1)
    async with queue.receive(wait=0) as claims:
        first, second = [await anext(claims), await anext(claims)]
        assert {1500, None} == {first.lease_ms, second.lease_ms}
        # A renewal never shortens a lease, so this one shows its end: 30 s from the grant, by default.
        default = (await app.storage.renew([queue.name], first._lease, 1))[queue.name]
        assert 1_500 < default.expires_at - default.now <= 30_000
        await first.extend(600)
        # A renewal never shortens a lease, so this one shows its end.
        renewed = (await app.storage.renew([queue.name], first._lease, 1))[queue.name]
        assert 590_000 <= renewed.expires_at - renewed.now <= 600_000
        with pytest.raises(Refused):
            await second.extend(0)


async def test_an_end_may_keep_nothing(queue: Queue) -> None:
    """A retention of 0, of the job or of its settlement, keeps no outcome."""
    await queue.enqueue(1, id="a")
    await (await claim_one(queue)).complete("gone", retention=0)
    await queue.enqueue(1, id="b", retention=0)
    await (await claim_one(queue)).fail("gone")

    assert (None, None) == (await queue.get("a"), await queue.get("b"))


async def submit_handed_off(mail: Queue, other: Queue) -> None:
    """Give each handed-off job to another queue system, which knows it by id and revision, as in the docs."""
    async for job in mail.list("handed_off"):
        submitted = {"id": job.id, "revision": job.revision, "data": job.data}
        await other.enqueue(submitted, id=f"{job.id}@{job.revision}", on_conflict=Reject())


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
