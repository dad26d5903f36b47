"""PgBouncer in each of its modes: the calls that work behind it, and the errors for those that do not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest

from dibs import Refused, StorageUnavailable
from dibs.model.job import EMPTY
from dibs.storage.postgres import PostgresStorage, open_url
from dibs_conformance.servers import PostgresServer, ServerUnavailable
from tests.storage.address import again
from tests.storage.postgres.jobs import asked
from tests.storage.postgres.pooler import PgBouncer
from tests.storage.postgres.scenarios.test_pooler import app, every_verb

Opening = Callable[..., PostgresStorage]


@pytest.fixture
def pgbouncer(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A PgBouncer in the mode that the test names."""
    try:
        bouncer = PgBouncer(postgres_server, request.param)
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with bouncer:
        bouncer.start()
        yield bouncer


MODES = pytest.mark.parametrize("pgbouncer", ["session", "transaction", "statement"], indirect=True)
TRANSACTION = pytest.mark.parametrize("pgbouncer", ["transaction"], indirect=True)
STATEMENT = pytest.mark.parametrize("pgbouncer", ["statement"], indirect=True)


@MODES
async def test_every_verb_works_in_each_mode(opening: Opening, pgbouncer: PgBouncer, schema: str) -> None:
    async with opening():
        pass
    async with open_url(pgbouncer.url, schema=schema) as storage:
        await every_verb(storage)
        await storage.enqueue("q", [asked("c")])
        assert (await storage.wait(["q"], timeout=30)).woken


@STATEMENT
async def test_statement_mode_says_that_the_tables_must_be_there(pgbouncer: PgBouncer, schema: str) -> None:
    with pytest.raises(StorageUnavailable, match=r"statement mode .* Open the storage once with the URL"):
        await open_url(pgbouncer.url, schema=schema).__aenter__()


@STATEMENT
async def test_statement_mode_refuses_a_transaction_and_takes_autocommit(
    opening: Opening, pgbouncer: PgBouncer, schema: str
) -> None:
    async with opening() as storage:
        async with await psycopg.AsyncConnection.connect(pgbouncer.url) as mine:
            with pytest.raises(Refused, match="statement mode") as caught:
                await storage.in_transaction(mine).enqueue("q", [asked("a")])
            await mine.close()
        async with await psycopg.AsyncConnection.connect(pgbouncer.url, autocommit=True) as mine:
            await storage.in_transaction(mine).enqueue("q", [asked("b")])

        assert "connection" == caught.value.field
        assert [EMPTY, False] == [
            slot if slot is EMPTY else slot.current is None for slot in await storage.get("q", ["a", "b"])
        ]


@TRANSACTION
async def test_a_refused_parameter_of_the_url_is_named(pgbouncer: PgBouncer, schema: str) -> None:
    url = f"{pgbouncer.url}?options=-c%20statement_timeout%3D5s"
    with pytest.raises(StorageUnavailable, match=r"parameter: options.*ignore_startup_parameters") as caught:
        await open_url(url, schema=schema).__aenter__()
    assert "running" not in str(caught.value)


@TRANSACTION
async def test_the_statements_in_a_transaction_are_not_prepared(pgbouncer: PgBouncer, schema: str) -> None:
    """psycopg prepares a statement at its sixth use. The next transaction may have another session."""
    async with open_url(pgbouncer.url, schema=schema) as storage:

        async def many(name: str) -> None:
            async with await psycopg.AsyncConnection.connect(pgbouncer.url) as mine:
                for number in range(20):
                    await storage.in_transaction(mine).enqueue("q", [asked(f"{name}-{number}")])
                    await mine.commit()

        await asyncio.gather(*(many(name) for name in "abcdef"))
        assert 120 == (await storage.counts(["q"]))["q"].waiting


RUNS: Counter[int] = Counter()


@app.task(queue="counted", size=1)
async def counted(number: int) -> None:
    RUNS[number] += 1
    await asyncio.sleep(0.002)


@TRANSACTION
async def test_a_worker_runs_every_job_once(pgbouncer: PgBouncer, schema: str) -> None:
    async with app.using(f"{pgbouncer.url}?schema={schema}&poll=0.1"):
        await run_jobs(300, pgbouncer.url, schema)

    assert {1} == set(RUNS.values())


@pytest.mark.chaos
@TRANSACTION
async def test_a_worker_runs_every_job_while_pgbouncer_is_killed(pgbouncer: PgBouncer, schema: str) -> None:
    """A lost lease may repeat a run. No job is lost, and none completes twice."""
    async with app.using(f"{pgbouncer.url}?schema={schema}&poll=0.1"):
        killing = asyncio.create_task(kill_and_start(pgbouncer))
        await run_jobs(2000, pgbouncer.url, schema)
        assert 3 <= await killing


async def kill_and_start(pgbouncer: PgBouncer) -> int:
    """Kill PgBouncer whenever 500 more runs have begun, and start it again. Return the number of kills."""
    for kills in range(1, 4):
        while len(RUNS) < 500 * kills:  # noqa: ASYNC110 - the handlers count
            await asyncio.sleep(0.01)
        pgbouncer.kill()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(pgbouncer.start)
    return kills


async def run_jobs(number: int, url: str, schema: str) -> None:
    """Run jobs until all have ended, and check in the log that each has completed once."""
    RUNS.clear()
    tickets = await counted.enqueue_many([counted.options(id=str(n)).bind(n) for n in range(number)])
    work = asyncio.create_task(app.work(["counted"], lease=2, heartbeat=0.5))
    ends = asyncio.gather(*(again(ticket.result) for ticket in tickets))
    work.add_done_callback(lambda _: ends.cancel())
    await ends
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)

    assert dict.fromkeys(map(str, range(number)), 1) == await completions(url, schema)


async def completions(url: str, schema: str) -> Counter[str]:
    """Return how often each id has completed, by the log."""
    found: Counter[str] = Counter()
    async with open_url(url, schema=schema) as storage:
        after: str | None = ""
        while (page := await storage.events("counted", after=after, limit=1000)).events:
            found.update(event.id for _, event in page.events if event.kind == "completed")
            after = page.offset
    return found
