"""Every storage returns the values that it was given: data of all types, errors as text, retentions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from dibs import (
    Dibs,
    JobFailed,
    JsonSerde,
    MessagePackSerde,
    OutcomeNotKept,
    OutcomeUnknown,
    Queue,
    Retention,
    Serde,
    content_id,
)
from dibs.model.results import EnqueueResult
from tests.client import handlers
from tests.client.handlers import Crop, Frame, Line, Order, Size
from tests.client.manual_claims import claimed


class Backwards:
    """A serde of an application: JSON written backwards."""

    name = "backwards"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()[::-1]

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return json.loads(raw[::-1])


SERDES: list[tuple[Serde, Any]] = [
    (JsonSerde(), {"text": "ä\u2028", "large": 2**60, "deep": [[[]]], "none": None}),
    (MessagePackSerde(), {"bytes": b"\x00\xff", "when": datetime(2026, 1, 1, tzinfo=UTC)}),
    (Backwards(), {"a": [1, 2.5, "b"]}),
]


@pytest.mark.parametrize(("serde", "value"), SERDES, ids=[serde.name for serde, _ in SERDES])
async def test_a_value_comes_back_as_its_serde_wrote_it(
    any_app: Dibs, any_queue: Queue, serde: Serde, value: Any
) -> None:
    queue = any_app.queue(f"{any_queue.name}-{serde.name}", serde=serde)
    ticket = await queue.enqueue(value)
    async with claimed(queue) as claim:
        assert claim.data == value
        await claim.complete(claim.data)

    assert await ticket.result(0) == value


@pytest.mark.parametrize("serde", [JsonSerde(), MessagePackSerde()], ids=lambda one: one.name)
async def test_a_task_gets_and_gives_the_types_of_its_hints(
    any_app: Dibs, any_queue: Queue, serde: Serde
) -> None:
    """Models, dataclasses, attrs, Enum, Decimal, UUID and dates pass through a worker and come back."""
    task = any_app.task(queue=f"{any_queue.name}-{serde.name}", serde=serde)(handlers.modelled)
    line = Line(article=UUID(int=7), kind=Size.SMALL)
    order = Order(no=5, placed=datetime(2026, 1, 1, tzinfo=UTC), price=Decimal("0.10"), lines=[line])
    ticket = await task.enqueue(order, others={"b": order}, frame=Frame(Size.SMALL, Crop(1)))
    report = await any_app.work([task.queue.name], until="empty")

    assert report.total("completed") == 1
    assert await ticket.result(0) == order


async def test_an_error_is_kept_as_text_with_its_causes(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(1)
    async with claimed(any_queue) as claim:
        try:
            try:
                int("seven")
            except ValueError as error:
                raise handlers.Lost("no such käy") from error
        except handlers.Lost as error:
            await claim.fail(error)

    with pytest.raises(JobFailed) as failed:
        await ticket.result(0)
    kept = failed.value.error
    assert (kept.type, kept.message) == ("tests.client.handlers.Lost", "no such käy")
    assert kept.cause.type == "ValueError"
    assert "'seven'" in kept.cause.message
    assert "test_stored_values.py" in kept.traceback
    assert failed.value.__cause__ is None


async def test_how_long_an_end_is_kept_is_said_by_the_job_and_may_be_changed(any_queue: Queue) -> None:
    retention = Retention(completed=None, failed=120, cancelled=0)
    tickets = await any_queue.enqueue_many(
        any_queue.bind(n, id=id, retention=retention) for n, id in enumerate(("done", "failed", "cancelled"))
    )
    await any_queue.cancel("cancelled")
    async with any_queue.receive(wait=0) as claims:
        async for claim in claims:
            await (claim.complete("x" * 100_000) if claim.id == "done" else claim.fail("no"))
    done, failed = await any_queue.get("done"), await any_queue.get("failed")

    assert done is not None
    assert done.expires_at is None
    assert failed is not None
    assert failed.ended_at is not None
    assert failed.expires_at == failed.ended_at + timedelta(seconds=120)
    assert (await tickets[2].status()).state == "not_kept"
    assert await any_queue.amend("done", retention=0) == "amended"
    with pytest.raises(OutcomeNotKept):
        await tickets[0].result(0)


async def test_an_enqueue_is_safe_to_repeat_when_its_reply_was_lost(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = any_app.storage.enqueue
    heard = iter((False, True))

    async def hard_of_hearing(*args: Any, **named: Any) -> Sequence[EnqueueResult]:
        answers = await enqueue(*args, **named)
        if not next(heard):
            raise OutcomeUnknown
        return answers

    id = content_id({"order": 7})
    monkeypatch.setattr(any_app.storage, "enqueue", hard_of_hearing)
    with pytest.raises(OutcomeUnknown):
        await any_queue.enqueue(1, id=id, request_key="order-7")
    async with claimed(any_queue) as claim:
        again = await any_queue.enqueue(1, id=id, request_key="order-7")
        await claim.complete("once")

    assert (again.repeated, again.verdict) == (True, "queued")
    assert await again.result(0) == "once"
    assert (await any_queue.counts()).waiting == 0
