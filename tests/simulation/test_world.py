"""Virtual time, processes that are frozen and killed, and the clocks of a process."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from dibs.client.options.arguments import new_id
from dibs_conformance.simulation.standard_library import from_seed
from dibs_conformance.simulation.world import SECOND, Process, World


@pytest.fixture
def world() -> Iterator[World]:
    world = World(1)
    with from_seed(world, 1):
        yield world


def test_time_jumps_to_the_next_timer(world: World) -> None:
    seen: list[float] = []

    async def sleep_for_a_day() -> None:
        began = time.monotonic()
        await asyncio.sleep(86_400)
        seen.append(time.monotonic() - began)

    Process(world, "one").start(sleep_for_a_day(), lambda _: None)
    world.run(100_000 * SECOND)

    assert seen == [pytest.approx(86_400, abs=0.01)]
    assert world.events < 20


def test_a_frozen_process_goes_on_after_its_freeze(world: World) -> None:
    woken: list[float] = []

    async def sleep_for_a_second() -> None:
        await asyncio.sleep(1)
        woken.append(world.now / SECOND)

    process = Process(world, "one")
    process.start(sleep_for_a_second(), lambda _: None)
    world.call_in(0.5, process.freeze, 20.0)
    world.run(100 * SECOND)

    assert woken == [pytest.approx(20.5, abs=0.01)]


def test_a_killed_process_does_nothing_more(world: World) -> None:
    done: list[str] = []
    other = Process(world, "other")

    async def write_at_the_end() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0)
            done.append("cleanup after an await")

    process = Process(world, "one")
    process.start(write_at_the_end(), lambda _: done.append("end"))
    world.call_in(5, process.kill)
    world.call_in(6, process.post, done.append, "message")
    world.call_in(7, other.post, done.append, "message to the other")
    world.run(100 * SECOND)

    assert ["message to the other"] == done
    assert all(getattr(task.get_coro(), "cr_frame", None) is None for task in process.tasks())


def test_each_process_has_its_own_clocks(world: World) -> None:
    readings: dict[str, tuple[float, int]] = {}

    async def read(name: str) -> None:
        await asyncio.sleep(1000)
        readings[name] = (time.monotonic(), time.time_ns())

    one_process, two_process = Process(world, "one"), Process(world, "two")
    one_process.start(read("one"), lambda _: None)
    two_process.start(read("two"), lambda _: None)
    two_process.clock.skew = 60 * SECOND
    world.run(2000 * SECOND)

    (_, one), (_, two) = readings["one"], readings["two"]
    assert readings["one"][0] != readings["two"][0]
    assert two - one == pytest.approx(60 * SECOND, abs=SECOND)


def test_an_error_that_nobody_handles_breaks_a_promise(world: World) -> None:
    def fail() -> None:
        raise ValueError("unseen")

    Process(world, "one").post(fail)
    world.run(SECOND)

    assert world.violation is not None
    assert "unseen" in world.violation.what


def test_random_values_come_from_the_seed() -> None:
    def draw() -> tuple[object, ...]:
        with from_seed(World(5), 5):
            return os.urandom(4), uuid4(), random.random(), new_id(), time.time_ns()

    assert draw() == draw()
