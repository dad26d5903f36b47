"""`assert_enqueued` finds a job by its queue, arguments or data, attributes and id, or says what is there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dibs import Refused
from dibs.testing import assert_enqueued, refute_enqueued, using
from tests.testing import service
from tests.testing.service import Mail, app

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def test_a_job_is_found_by_its_task_arguments_and_attributes() -> None:
    mail = Mail("ada@example.org", NOON)
    async with using(app):
        await service.send.options(delay=60, attributes={"order": 7, "vip": True}).enqueue(mail)

        found = await assert_enqueued(service.send, args=(mail,), attributes={"order": 7})

        assert (found.state, found.kwargs) == ("waiting", {})
        assert found == await assert_enqueued(service.send)
        assert found == await assert_enqueued(service.send, kwargs={"mail": mail}, id=found.id)


async def test_a_job_of_a_queue_is_found_by_its_data() -> None:
    async with using(app):
        await app.queue("q").enqueue({"to": ("ada", "bob")})

        assert (await assert_enqueued(app.queue("q"), data={"to": ["ada", "bob"]})).queue == "q"


async def test_blocked_and_active_jobs_are_found() -> None:
    queue = app.queue("q")
    async with using(app):
        await queue.enqueue("first", id="a")
        async with queue.receive(wait=0) as claims:
            await anext(claims)
            await queue.enqueue("second", id="a")

            assert (await assert_enqueued(queue, data="first")).state == "active"
            assert (await assert_enqueued(queue, data="second")).state == "blocked"


@pytest.mark.parametrize("wanted", [
    {"args": (2,)}, {"kwargs": {"number": 2}}, {"attributes": {"order": 8}}, {"attributes": {"x": 1}},
    {"id": "b"}, {"data": {"args": [2], "kwargs": {}}}, {"args": (1,), "id": "b"},
])  # fmt: skip
async def test_another_job_is_not_found_and_the_message_shows_what_is_there(wanted: dict[str, Any]) -> None:
    async with using(app):
        await service.plain.options(id="a", attributes={"order": 7}).enqueue(1)

        with pytest.raises(AssertionError) as failed:
            await assert_enqueued(service.plain, **wanted)

    (name, *_) = wanted
    assert f"{name}=" in str(failed.value)
    assert "'a' (waiting): plain(1), attributes {'order': 7}" in str(failed.value)


async def test_the_message_counts_jobs_that_have_ended() -> None:
    async with using(app) as rehearsal:
        await service.plain.enqueue(1)
        await rehearsal.run_due()

        with pytest.raises(AssertionError, match=r"(?s)no job is enqueued.*1 job ended"):
            await assert_enqueued(service.plain)


async def test_the_message_shows_ten_jobs_at_most() -> None:
    async with using(app):
        await service.plain.enqueue_many(service.plain.bind(number) for number in range(15))

        with pytest.raises(AssertionError, match="and 5 more"):
            await assert_enqueued(service.plain, args=(99,))


async def test_arguments_that_no_call_has_are_refused() -> None:
    async with using(app):
        with pytest.raises(Refused):
            await assert_enqueued(service.plain, args=("one", "two"))
        with pytest.raises(TypeError, match="data="):
            await assert_enqueued(app.queue("q"), args=(1,))


async def test_a_job_is_refuted() -> None:
    async with using(app):
        await refute_enqueued(service.plain)
        await service.plain.options(id="a").enqueue(1)
        await refute_enqueued(service.plain, args=(2,))
        await refute_enqueued(service.send)

        with pytest.raises(
            AssertionError, match=r"a job is enqueued in queue 'plain' with args=.*'a' \(waiting\)"
        ):
            await refute_enqueued(service.plain, args=(1,))


def test_blocking_handles_have_a_blocking_assertion() -> None:
    with using(app):
        refute_enqueued(service.plain.sync)
        service.plain.sync.enqueue(3)

        assert assert_enqueued(service.plain.sync, args=(3,)).args == (3,)
        with pytest.raises(AssertionError):
            assert_enqueued(app.sync.queue("plain"), data=1)
        with pytest.raises(AssertionError):
            refute_enqueued(service.plain.sync)
