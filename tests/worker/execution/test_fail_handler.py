"""A worker sets `fail_handler` for the queues with a failure handler, so each failure is handled."""

from __future__ import annotations

import pytest

from dibs import Dibs
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.worker import run
from tests.worker.faulty_storage import faulty_storage
from tests.worker.jobs import add, put


async def handles_failure(app: Dibs, queue: str) -> bool:
    found = {info.name: info.settings.fail_handler for info in await app.storage.queues()}
    return found.get(queue, False)


async def handed_off(app: Dibs, id: str) -> int:
    await app.storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id))])
    async with app.queue("q").receive(wait=0) as claims:
        return await (await anext(claims)).hand_off()


@pytest.mark.parametrize("queues", [["q"], ["q!fail"], None])
async def test_the_setting_is_written_before_the_first_claim(app: Dibs, queues: list[str] | None) -> None:
    add(app, "q", print)
    add(app, "q!fail", print)
    async with faulty_storage(app) as storage:
        await run(app, queues=queues, until="empty")
        asked = [call for call in storage.asked if call[0] in ("configure", "claim", "settle_and_claim")]

    assert ("configure", "q") == asked[0]
    assert await handles_failure(app, "q")
    assert not await handles_failure(app, "q!fail")


async def test_a_worker_without_a_failure_handler_leaves_the_setting(app: Dibs) -> None:
    add(app, "q", print)
    await run(app, until="empty")
    before = await handles_failure(app, "q")
    await app.queue("q").configure(fail_handler=True)
    await run(app, until="empty")

    assert (False, True) == (before, await handles_failure(app, "q"))


async def test_a_program_that_does_not_declare_the_handler_makes_the_fail_job(app: Dibs) -> None:
    """`add` declares the handler of the fail queue; the app has none when the two jobs fail."""
    add(app, "q!fail", print)
    await run(app, until="empty")
    del app.handlers["q!fail"]
    await app.queue("q").finish("a", await handed_off(app, "a"), error=ValueError("finished"))
    await put(app, "q", "b")
    async with app.queue("q").receive(wait=0) as claims:
        await (await anext(claims)).fail("claimed")

    page = await app.storage.list("q!fail", "waiting", limit=10)
    origins = [slot.current.origin for _, slot in page.items if slot.current is not None]
    assert ["a: finished", "b: claimed"] == sorted(f"{o.id}: {o.error.message}" for o in origins if o)


async def test_a_second_start_writes_nothing(app: Dibs) -> None:
    add(app, "q!fail", print)
    await run(app, until="empty")
    async with faulty_storage(app) as storage:
        await run(app, until="empty")

    assert "configure" not in storage.calls
