"""A failover to a standby at the same address: the errors, the jobs that are kept, and the new fences."""

from __future__ import annotations

import asyncio

import pytest

from dibs.errors import StorageReadOnly
from dibs.storage.postgres import open_url
from dibs_conformance.servers.processes import LOOPBACK
from tests.storage.address import Address, address_of, again
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.standby import Pair, asked_of, caught_up


def place(pair: Pair, address: Address) -> str:
    primary, _ = pair
    return f"postgresql://{primary.user}:{primary.password}@{LOOPBACK}:{address.port}/postgres"


async def fail_over(pair: Pair, address: Address, *, promote: bool) -> None:
    primary, standby = pair
    assert await asyncio.to_thread(caught_up, pair)
    primary.kill()
    if promote:
        assert await asyncio.to_thread(asked_of, standby, "SELECT pg_promote()")
    address.move(standby.port)


async def test_jobs_fences_and_wake_ups_survive_a_failover(pair: Pair) -> None:
    async with address_of(pair[0].port) as address, open_url(place(pair, address), poll=20) as storage:
        await storage.enqueue("q", [asked("a"), asked("b")])
        a, b = await claimed(storage)
        waiting = asyncio.ensure_future(again(lambda: storage.wait(["q"], timeout=60)))
        await fail_over(pair, address, promote=True)
        (answer,) = await again(lambda: storage.settle("q", [done(a)]))
        await again(lambda: storage.enqueue("q", [asked("a")]))
        assert (await waiting).woken
        (second,) = await claimed(storage)

    assert ("done", "a") == (answer.status, second.id)
    assert a.run
    assert b.run
    assert second.run
    assert second.run.fence > max(a.run.fence, b.run.fence)
    assert second.revision > max(a.revision, b.revision)


async def test_a_standby_is_read_and_not_written_until_it_is_promoted(pair: Pair) -> None:
    async with address_of(pair[0].port) as address, open_url(place(pair, address)) as storage:
        await storage.enqueue("q", [asked("a")])
        await fail_over(pair, address, promote=False)
        with pytest.raises(StorageReadOnly, match="nothing was changed"):
            await again(lambda: storage.enqueue("q", [asked("b")]))
        (slot,) = await storage.get("q", ["a"])
        assert slot.current is not None
        assert 1 == (await storage.counts(["q"]))["q"].waiting
        await asyncio.to_thread(asked_of, pair[1], "SELECT pg_promote()")
        await again(lambda: storage.enqueue("q", [asked("b")]))

        assert 2 == (await storage.counts(["q"]))["q"].waiting
