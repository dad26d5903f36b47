"""Statuses: what `queue.get` says about a job, its data and its end, on each storage."""

from __future__ import annotations

import pytest

from dibs import Dibs, Fixed, MessagePackSerde, Queue, Retention, Status
from tests.client import handlers
from tests.client.manual_claims import claimed, enqueue_unchecked


async def status(queue: Queue, id: str) -> Status:
    found = await queue.get(id)
    assert found is not None
    return found


async def test_a_waiting_job_shows_its_data_and_own_limits(any_queue: Queue) -> None:
    await any_queue.enqueue(
        {"to": "ada"},
        id="a",
        timeout=None,
        max_retries=2,
        backoff=Fixed(5),
        lease=90,
        retention=Retention(completed=60, failed=None, keep_payload=("completed",)),
    )

    found = await status(any_queue, "a")

    assert found.data == {"to": "ada"}
    assert (found.args, found.kwargs, found.result, found.lease) == ((), {}, None, "")
    assert found.limits == {"timeout": None, "max_retries": 2, "backoff": Fixed(5), "lease": 90.0}
    assert found.retention == Retention(completed=60.0, failed=None, keep_payload=("completed",))


async def test_a_plain_job_has_no_limits_of_its_own(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")

    found = await status(any_queue, "a")

    assert (found.data, found.limits, found.retention) == (1, {}, None)


async def test_a_task_shows_its_arguments(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    ticket = await task.options(id="a").enqueue("a.png", width=5)

    found = await ticket.status()

    assert (found.args, found.kwargs) == (("a.png",), {"width": 5})
    assert found.data == {"args": ["a.png"], "kwargs": {"width": 5}}


async def test_an_active_job_shows_its_lease_and_a_blocked_one_its_own_data(any_queue: Queue) -> None:
    await any_queue.enqueue("first", id="a")
    async with claimed(any_queue) as claim:
        blocked = await any_queue.enqueue("second", id="a", max_retries=1)
        active, waiting = await status(any_queue, "a"), await blocked.status()

        assert (active.data, active.lease) == ("first", claim._lease)
    assert (waiting.state, waiting.data, waiting.limits) == ("blocked", "second", {"max_retries": 1})


async def test_an_end_shows_its_result_and_the_data_that_is_kept(any_queue: Queue) -> None:
    for id, kept in (("a", ()), ("b", ("completed",))):
        await any_queue.enqueue("data", id=id, max_retries=1, retention=Retention(keep_payload=kept))  # type: ignore[arg-type]
        async with claimed(any_queue) as claim:
            await claim.complete({"n": 1})

    plain, full = await status(any_queue, "a"), await status(any_queue, "b")
    assert (plain.result, plain.data, plain.limits) == ({"n": 1}, None, {})
    assert (full.result, full.data, full.limits) == ({"n": 1}, "data", {"max_retries": 1})


async def test_data_of_another_serde_is_bytes(app: Dibs) -> None:
    queue = app.queue("q", serde=MessagePackSerde())
    await queue.enqueue({"n": 1}, id="a")
    other = Dibs("memory:").queue("q")
    other._client.storage_handle = queue._client.storage_handle

    assert isinstance((await status(other, "a")).data, bytes)
    assert (await status(queue, "a")).data == {"n": 1}


@pytest.mark.parametrize("data", [{"args": 1, "kwargs": {}}, {"args": [1]}, [1], "args"])
async def test_data_that_is_no_call_has_no_arguments(app: Dibs, data: object) -> None:
    await enqueue_unchecked(app.queue("q"), data, id="a")

    found = await status(app.queue("q"), "a")

    assert (found.args, found.kwargs) == ((), {})
