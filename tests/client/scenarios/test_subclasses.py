"""Subclasses of str, bytes and numbers count as their plain value on every storage."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from dibs import Queue, Retention


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


async def test_data(any_queue: Queue) -> None:
    """Texts of template engines and members of an Enum are data, too. Bytes become base64 in JSON."""
    await any_queue.enqueue([Text("y"), Number(1), Fraction(0.5), Name.ADA, Bytes(b"x")], id="a")
    async with any_queue.receive(max_jobs=1, wait=5) as claims:
        claim = await anext(aiter(claims))
        await claim.complete(Text("done"))

        assert ["y", 1, 0.5, "ada", "eA=="] == claim.data
