"""Request and response on every storage: each end wakes its waiter, also after connections were cut."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from dibs import (
    Claim,
    Dibs,
    JobCancelled,
    JobEnded,
    JobFailed,
    OutcomeNotKept,
    OutcomeUnknown,
    Queue,
    StorageUnavailable,
    Ticket,
    WaitTimeout,
)
from dibs.client.connection import outcome_wait
from dibs.client.connection.outcome_wait import OutcomeWait
from dibs.storage.sleeper import Sleeper
from tests.client.manual_claims import claimed
from tests.client.verb_counts import counted

#: Classes of the waits of tickets and of all storages.
WAITS = (OutcomeWait, Sleeper)
SOON = 120
#: Calls that are sent at once, so that a storage opens all connections that it may have, and keeps them.
POOL = 70


@pytest.fixture
def cut(any_url: str, request: pytest.FixtureRequest) -> Callable[[], None]:
    """Return a function that ends all connections to the server."""

    def redis() -> None:
        server = request.getfixturevalue("redis_server")
        for kind in ("normal", "pubsub"):
            server.execute("CLIENT", "KILL", "TYPE", kind)

    def postgres() -> None:
        with psycopg.connect(request.getfixturevalue("postgres_server").url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    return redis if any_url.startswith("redis") else postgres


@pytest.fixture
def calls(any_app: Dibs, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of each verb of the storage, by name."""
    return counted(any_app.storage, monkeypatch)


async def surely(step: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a step whose reply was lost: settling by fence is safe to repeat (contract 4, promise 7)."""
    async with asyncio.timeout(SOON):
        while True:
            try:
                await step()
            except (OutcomeUnknown, StorageUnavailable):
                continue
            return


async def cancel_running(queue: Queue, claim: Claim) -> None:
    await queue.cancel(claim.id, running=True)
    await claim.release()


ENDS: dict[str, tuple[Callable[[Queue, Claim], Awaitable[Any]], type[JobEnded] | None]] = {
    "completed": (lambda _, claim: claim.complete("done"), None),
    "failed": (lambda _, claim: claim.fail(ValueError("no")), JobFailed),
    "cancelled": (cancel_running, JobCancelled),
    "forgotten": (lambda queue, claim: queue.forget(claim.id), OutcomeNotKept),
}


@pytest.mark.parametrize("any_url", ["redis", "postgresql"], indirect=True)
@pytest.mark.parametrize(("end", "error"), ENDS.values(), ids=ENDS)
async def test_each_end_wakes_who_waits_also_over_cut_connections(
    any_url: str,
    any_queue: Queue,
    cut: Callable[[], None],
    calls: Counter[str],
    end: Any,
    error: type[JobEnded] | None,
) -> None:
    ticket = await any_queue.enqueue(1, id="a")
    async with Dibs(any_url) as elsewhere:
        worker = elsewhere.queue(any_queue.name)
        async with claimed(worker) as claim, asyncio.timeout(SOON):
            waiter = asyncio.create_task(ticket.result(SOON))
            while not (calls["wait"] and calls["get"]):  # noqa: ASYNC110 - it waits in the storage
                await asyncio.sleep(0)
            cut()
            await surely(lambda: end(worker, claim))

            if error is None:
                assert await waiter == "done"
            else:
                with pytest.raises(error):
                    await waiter


async def test_the_first_wait_of_a_client_sees_an_end_before_its_subscription(
    any_url: str, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server confirms the first subscription later than it answers the read of the state."""
    monkeypatch.setattr(outcome_wait, "SLOW_POLL_SECONDS", 10.0 * SOON)
    ticket = await any_queue.enqueue(1, id="a")
    async with Dibs(any_url) as elsewhere, claimed(elsewhere.queue(any_queue.name)) as claim:
        async with asyncio.timeout(SOON):
            result, _ = await asyncio.gather(ticket.result(SOON * 2), claim.complete("done"))

    assert result == "done"


class Census:
    """Counts the resources of waits, in this process and on the server."""

    def __init__(self, url: str, request: pytest.FixtureRequest) -> None:
        self._url, self._request = url, request

    def here(self) -> Counter[str]:
        """Return the numbers of tasks, threads and live waits of this process."""
        gc.collect()
        waits = sum(issubclass(type(one), WAITS) for one in gc.get_objects())
        return Counter(waits=waits, tasks=len(asyncio.all_tasks()), threads=threading.active_count())

    def there(self) -> Counter[str]:
        """Return the numbers of connections and channels on the server."""
        match self._url.partition(":")[0]:
            case "redis":
                ask = self._request.getfixturevalue("redis_server").execute
                prefix = self._url.partition("?prefix=")[2]
                channels = [name for name in ask("PUBSUB", "CHANNELS") if prefix in name]
                return Counter(channels=len(channels), connections=ask("CLIENT", "LIST").count("id="))
            case "postgresql":
                with psycopg.connect(self._request.getfixturevalue("postgres_server").url) as connection:
                    row = connection.execute("SELECT count(*) FROM pg_stat_activity").fetchone()
                return Counter(connections=row[0] if row else 0)
            case _:
                return Counter()


@pytest.mark.parametrize("waits", [1000, pytest.param(10_000, marks=pytest.mark.chaos)])
async def test_cancelled_waits_leave_nothing_behind(
    any_url: str, any_queue: Queue, request: pytest.FixtureRequest, waits: int
) -> None:
    """The waits are cancelled at each point: before they subscribe, while they read, while they sleep."""
    tickets = await any_queue.enqueue_many(any_queue.bind(n, delay=3600) for n in range(250))
    with pytest.raises(WaitTimeout):
        await tickets[0].result(0)
    census = Census(any_url, request)
    here, there = census.here(), Counter(connections=POOL, channels=1)
    for _ in range(waits // len(tickets)):
        await cancelled_waits(tickets)

    async with asyncio.timeout(SOON):
        while left := (census.here() - here) + (census.there() - there):
            print(left)  # noqa: T201 - shown if the test times out
            await asyncio.sleep(0.05)
    assert (await any_queue.counts()).scheduled == len(tickets)


async def cancelled_waits(tickets: Sequence[Ticket[Any]]) -> None:
    waits = [asyncio.create_task(ticket.result(SOON)) for ticket in tickets]
    for turn, wait in enumerate(waits):
        if turn % 10 == 0:
            await asyncio.sleep(0)
        wait.cancel()
    assert all(
        isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*waits, return_exceptions=True)
    )
