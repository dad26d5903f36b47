"""Applications on each storage: opening, errors, waits, events, claims and hand-offs."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys

import pytest

from dibs import (
    Dibs,
    NotRunning,
    Queue,
    Reject,
    StorageError,
    open_storage,
)
from dibs.storage.registry import parse_scheme
from tests.lineage import scripted_handlers
from tests.lineage.blocked_creation import BLOCK_CREATION
from tests.lineage.scripted_handlers import claim_one


async def test_a_place_is_a_url(storage_url: str, other_url: str) -> None:
    """Two apps with the same URL share their jobs; another URL or queue has other jobs."""
    async with Dibs(storage_url) as one, Dibs(storage_url) as two, Dibs(other_url) as elsewhere:
        await one.queue("q").enqueue(1, id="a")

        assert await two.queue("q").get("a") is not None
        assert await two.queue("r").get("a") is None
        assert await two.queue("Q").get("a") is None
        assert await elsewhere.queue("q").get("a") is None


async def test_closing_twice_is_closing(storage_url: str) -> None:
    """Closing twice is allowed; each later call raises NotRunning."""
    app = Dibs(storage_url)
    await app.open()
    await asyncio.gather(app.close(), app.close())
    with pytest.raises(NotRunning):
        await app.queue("q").enqueue(1)


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
