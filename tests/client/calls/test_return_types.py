"""A return type whose values no serde of dibs can store is refused at the declaration."""

from __future__ import annotations

import socket
from typing import Any, NoReturn

import pytest

from dibs import BadHandler, Dibs


def opens() -> socket.socket:
    raise NotImplementedError


async def opens_later(data: Any) -> list[socket.socket]:
    raise NotImplementedError


def never() -> NoReturn:
    raise NotImplementedError


def anything() -> object:
    raise NotImplementedError


def test_a_return_type_that_cannot_be_stored_is_refused() -> None:
    app = Dibs("memory:")
    with pytest.raises(BadHandler, match=r"opens: its return type cannot be stored\. socket"):
        app.task(opens)
    with pytest.raises(BadHandler, match="opens_later: its return type cannot be stored"):
        app.queue("q").handler(opens_later)


@pytest.mark.parametrize("function", [never, anything])
def test_a_return_type_without_values_or_with_any_is_accepted(function: Any) -> None:
    assert Dibs("memory:").task(function).queue.name == f"{function.__module__}.{function.__name__}"
