"""A URL with two hosts, a primary and a standby: calls go to the primary, before and after a failover."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from dibs import Dibs, OutcomeUnknown, StorageReadOnly, StorageUnavailable, Ticket
from dibs.storage.postgres import PostgresStorage, open_url
from dibs_conformance.servers import PostgresServer
from dibs_conformance.servers.processes import LOOPBACK, wait_until
from tests.storage.address import again
from tests.storage.postgres.jobs import asked
from tests.storage.postgres.standby import Pair, asked_of, caught_up

app = Dibs("memory:")


@app.task(queue="doubled", size=1)
async def doubled(number: int) -> int:
    await asyncio.sleep(0.002)
    return 2 * number


def url_of(*servers: PostgresServer) -> str:
    hosts = ",".join(f"{LOOPBACK}:{server.port}" for server in servers)
    return f"postgresql://{servers[0].user}:{servers[0].password}@{hosts}/postgres?schema=dibs"


async def port_of(storage: PostgresStorage) -> int:
    ((port,),) = await storage._server.fetch(b"SELECT current_setting('port')::integer", {}, writes=False)
    return int(port)


async def test_of_two_hosts_the_primary_serves_in_any_order(pair: Pair) -> None:
    primary, standby = pair
    for servers in ((primary, standby), (standby, primary)):
        async with open_url(url_of(*servers)) as storage:
            await storage.enqueue("q", [asked("a")])
            assert primary.port == await port_of(storage)


async def test_a_url_may_ask_for_the_standby(pair: Pair) -> None:
    primary, standby = pair
    async with open_url(url_of(primary)) as storage:
        await storage.enqueue("q", [asked("a")])
    assert await asyncio.to_thread(caught_up, pair)
    async with open_url(f"{url_of(primary, standby)}&target_session_attrs=standby") as storage:
        assert standby.port == await port_of(storage)
        assert 1 == (await storage.counts(["q"]))["q"].waiting
        with pytest.raises(StorageReadOnly):
            await storage.enqueue("q", [asked("b")])


async def test_while_no_host_is_primary_every_call_says_unavailable(pair: Pair) -> None:
    primary, standby = pair
    async with open_url(url_of(primary, standby)) as storage:
        await storage.enqueue("q", [asked("a")])
        assert await asyncio.to_thread(caught_up, pair)
        primary.kill()
        for call in (
            # A read first: a backend outlives its killed server for some ms, and a write that it was sent has
            # an unknown result.
            lambda: storage.get("q", ["a"]),
            lambda: storage.enqueue("q", [asked("b")]),
            lambda: storage.claim("q", "0" * 32, 1),
        ):
            with pytest.raises(
                StorageUnavailable, match=f"{LOOPBACK}:{primary.port}, {LOOPBACK}:{standby.port}"
            ):
                await call()
        assert await asyncio.to_thread(asked_of, standby, "SELECT pg_promote()")
        await again(lambda: storage.enqueue("q", [asked("b")]))
        assert 2 == (await storage.counts(["q"]))["q"].waiting


async def test_a_primary_that_becomes_read_only_is_left_for_the_new_one(pair: Pair) -> None:
    """One call raises StorageReadOnly. The next one opens a new connection, which goes to the new primary."""
    primary, standby = pair
    async with open_url(url_of(primary, standby), max_connections=1) as storage:
        await storage.enqueue("q", [asked("a")])
        assert await asyncio.to_thread(caught_up, pair)
        assert await asyncio.to_thread(asked_of, standby, "SELECT pg_promote()")
        await asyncio.to_thread(make_read_only, primary)
        with pytest.raises(StorageReadOnly, match="nothing was changed"):
            await storage.enqueue("q", [asked("b")])
        await storage.enqueue("q", [asked("b")])

        assert standby.port == await port_of(storage)
        assert 2 == (await storage.counts(["q"]))["q"].waiting


def make_read_only(server: PostgresServer) -> None:
    asked_of(server, "ALTER SYSTEM SET default_transaction_read_only = on")
    asked_of(server, "SELECT pg_reload_conf()")
    assert wait_until(lambda: asked_of(server, "SHOW default_transaction_read_only") == "on", 30)


async def test_with_synchronous_replication_a_failover_loses_no_accepted_job(pair: Pair) -> None:
    """A client and a worker continue on the new primary, and neither is started again.

    Enqueues may fail between the kill and the promotion. On a busy machine none does: a new connection takes
    0.2 s there, as long as the promotion, so the first host is gone and the second one is the primary.
    """
    primary, standby = pair
    await asyncio.to_thread(make_synchronous, primary)
    accepted: list[Ticket[int]] = []
    enough = asyncio.Event()

    async def produce() -> None:
        for number in count():
            try:
                ticket = await doubled.options(id=str(number)).enqueue(number)
            except (OutcomeUnknown, StorageUnavailable):
                await asyncio.sleep(0.02)
            else:
                accepted.append(ticket)
            if enough.is_set():
                return

    async with app.using(f"{url_of(primary, standby)}&poll=0.1"):
        producing = asyncio.create_task(produce())
        work = asyncio.create_task(app.work(["doubled"], lease=2, heartbeat=0.5))
        await reach(accepted, 100)
        primary.kill()
        assert await asyncio.to_thread(asked_of, standby, "SELECT pg_promote()")
        await reach(accepted, len(accepted) + 100)
        enough.set()
        await producing
        results = {ticket.id: await again(ticket.result) for ticket in accepted}
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    assert {ticket.id: 2 * int(ticket.id) for ticket in accepted} == results


async def reach(accepted: list[Ticket[int]], number: int) -> None:
    async with asyncio.timeout(60):
        while len(accepted) < number:  # noqa: ASYNC110 - a client counts
            await asyncio.sleep(0.01)


def make_synchronous(primary: PostgresServer) -> None:
    asked_of(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    asked_of(primary, "SELECT pg_reload_conf()")
    found = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
    assert wait_until(lambda: asked_of(primary, found) == 1, 30)
