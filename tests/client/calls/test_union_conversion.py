"""Unions with a model of pydantic whose JSON is a single value, which looks like a value of another type."""

from __future__ import annotations

import pytest
from pydantic import RootModel

from dibs import Dibs


class Celsius(RootModel[float]): ...


async def heat(degrees: Celsius | float) -> str:
    return type(degrees).__name__


@pytest.mark.parametrize(("given", "arrived"), [(Celsius(20.5), "Celsius"), (20.5, "float")])
async def test_a_root_model_and_a_plain_value_arrive_as_given(given: Celsius | float, arrived: str) -> None:
    async with Dibs("memory:") as app:
        ticket = await app.task(heat).enqueue(given)
        await app.work(until="empty")

        assert arrived == await ticket.result()
