"""The numbers of statements that jobs and waits send. A superfluous statement fails no other test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.model.requests import Complete, Settlement
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.network.server import PostgresDatabase
from tests.storage.exchange import begun, counted, exchange
from tests.storage.postgres.jobs import asked


async def test_a_job_costs_one_statement_for_each_verb_and_none_for_its_waits(
    opening: Callable[..., PostgresStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opening(poll=60.0) as storage:
        lease, token = await begun(storage)
        token = await exchange(storage, lease, token, "warm")
        with counted(monkeypatch, PostgresDatabase, "fetch") as calls:
            for number in range(5):
                token = await exchange(storage, lease, token, f"job-{number}")

        sent = [call["words"][0] for call in calls]
        queries = storage._server.queries
        assert [queries[name] for name in ("enqueue_one", "claim", "serve", "get")] * 5 == sent


async def test_a_batch_costs_as_many_requests_as_a_single_job(
    storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 500 jobs on, three more statements may raise the start of the line."""
    lease = (await storage.grant(["q"], 600_000, "worker")).lease
    with counted(monkeypatch, PostgresDatabase, "fetch") as calls:
        await storage.enqueue("q", [asked(f"{n}") for n in range(400)])
        jobs = (await storage.claim("q", lease, 400)).jobs
        ends = [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]
        await storage.settle("q", ends)

    assert (400, 3) == (len(ends), len(calls))


async def test_the_next_wait_reads_only_the_queues_that_the_last_one_has_not_read(
    opening: Callable[..., PostgresStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opening(poll=60.0) as storage:
        await storage.grant([f"q{n}" for n in range(10)], 600_000, "worker")
        nine, ten = [[f"q{n}" for n in range(number)] for number in (9, 10)]
        with counted(monkeypatch, PostgresDatabase, "fetch") as calls:
            await storage.wait(nine, timeout=0)
            await storage.wait(nine, timeout=0)
            await storage.wait(ten, timeout=0)

        assert [nine, ["q9"]] == [call["words"][1]["queues"] for call in calls]


async def test_a_wait_after_a_read_ends_with_an_enqueue_in_between(
    opening: Callable[..., PostgresStorage],
) -> None:
    async with opening(poll=60.0) as storage:
        await storage.grant(["q", "r"], 600_000, "worker")
        await storage.wait(["q", "r"], timeout=0.01)
        await storage.enqueue("r", [asked("a")])

        assert (await storage.wait(["q", "r"], timeout=30.0)).woken
