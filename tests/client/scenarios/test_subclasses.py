"""Subclasses of str, bytes and numbers count as their plain value on every storage."""

from __future__ import annotations

import asyncio
import enum
from typing import Any

import pytest

from dibs import Dibs, Queue, Retention


class Text(str):
    """A text that prints as something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<Text>"


class Bytes(bytes):
    pass


class Number(int):
    pass


class Fraction(float):
    pass


class Name(str, enum.Enum):  # noqa: UP042 - its str() differs from its value, unlike that of a StrEnum
    ADA = "ada"


class Level(enum.IntEnum):
    HIGH = 7


SETTINGS: dict[str, dict[str, Any]] = {
    "id": {"id": Text("a")},
    "id of an Enum": {"id": Name.ADA},
    "request_key": {"request_key": Text("k")},
    "attributes": {"attributes": {Text("who"): Text("ada"), "n": [Number(1), Fraction(1.5), Name.ADA]}},
    "priority": {"priority": Number(3)},
    "priority of an Enum": {"priority": Level.HIGH},
    "delay": {"delay": Fraction(2.5)},
    "limits": {
        "timeout": Number(3),
        "max_retries": Number(3),
        "max_stalls": Level.HIGH,
        "lease": Fraction(1),
    },
    "retention": {"retention": Retention(completed=Number(5), failed=Fraction(5.5))},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
async def test_settings_of_a_job(any_queue: Queue, settings: dict[str, Any]) -> None:
    ticket = await any_queue.enqueue({Text("x"): Text("y")}, **settings)
    status = await ticket.status()

    assert "waiting" == status.state
    assert str is type(ticket.id)
    assert [(ticket.id, str)] == [(one.id, type(one.id)) async for one in any_queue.list("waiting")]
    if "attributes" in settings:
        assert {"who": "ada", "n": [1, 1.5, "ada"]} == status.attributes
        assert {str} == set(map(type, status.attributes))


async def test_one_call_does_not_fail_its_neighbours(any_queue: Queue) -> None:
    ids = ["a", Text("b"), "c", Name.ADA]
    tickets = await asyncio.gather(*(any_queue.enqueue(1, id=id, max_retries=Number(2)) for id in ids))

    assert ["a", "b", "c", "ada"] == [ticket.id for ticket in tickets]


async def test_calls_by_id(any_queue: Queue) -> None:
    for id in ("a", "b", "c"):
        await any_queue.enqueue(1, id=id)
    found = await any_queue.get(Text("a"))

    assert found is not None
    assert "waiting" == found.state
    assert "amended" == await any_queue.amend(
        Text("a"), priority=Number(4), attributes={Text("k"): Text("v")}
    )
    assert "cancelled" == await any_queue.cancel(Text("a"))
    assert await any_queue.forget(Text("b"))
    assert ["cancelled"] == await any_queue.cancel_many([Text("c")])


async def test_settings_of_a_queue(any_app: Dibs, any_queue: Queue) -> None:
    queue = any_app.queue(Text(any_queue.name))
    level: Any = Text("all")
    await queue.configure(max_active=Number(3), log_level=level, log_age=Fraction(60.5))
    await queue.enqueue(1, id="a")

    assert str is type(queue.name)
    [settings] = [info.settings for info in await any_app.storage.queues() if info.name == any_queue.name]
    assert (3, "all", 60_500) == (settings.max_active, settings.log_level, settings.log_age)


async def test_data(any_queue: Queue) -> None:
    """Texts of template engines and members of an Enum are data, too. Bytes become base64 in JSON."""
    await any_queue.enqueue([Text("y"), Number(1), Fraction(0.5), Name.ADA, Bytes(b"x")], id="a")
    async with any_queue.receive(max_jobs=1, wait=5) as claims:
        claim = await anext(aiter(claims))
        await claim.complete(Text("done"))

        assert ["y", 1, 0.5, "ada", "eA=="] == claim.data
