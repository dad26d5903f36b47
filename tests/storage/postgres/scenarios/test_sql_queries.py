"""Jobs and outcomes are read with plain SQL, by a connection that does not know dibs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs import Dibs, Queue
from dibs.storage.postgres import PostgresStorage
from dibs_conformance.servers import PostgresServer

STATES = "SELECT state, count(*) FROM jobs WHERE queue = 'mail' GROUP BY state ORDER BY state"
WAITING = "SELECT id, payload ->> 'to', attributes ->> 'tenant' FROM jobs WHERE state = 'waiting'"
ENDED = "SELECT id, state, result ->> 0, error_type, error_message FROM outcomes ORDER BY id"


async def fill(queue: Queue) -> None:
    """Leave one job in each state."""
    for id in ("done", "failed", "handed off", "active"):
        await queue.enqueue({"to": id}, id=id)
    claims = await queue.receive(wait=0).__aenter__()
    await (await anext(claims)).complete(["sent"])
    await (await anext(claims)).fail("no such address")
    await (await anext(claims)).hand_off()
    await anext(claims)
    await queue.enqueue({"to": "ada"}, id="a", attributes={"tenant": 7})
    await queue.enqueue({"to": "bob"}, id="b", delay=60)


async def test_jobs_and_outcomes_are_rows(
    postgres_server: PostgresServer,
    storage: PostgresStorage,
    schema: str,
    connect: Callable[[], Any],
) -> None:
    connection = await connect()

    async def rows(query: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = await (await connection.execute(query)).fetchall()
        return found

    async with Dibs(f"{postgres_server.url}?schema={schema}") as app:
        await fill(app.queue("mail"))
        assert [("active", 1), ("handed_off", 1), ("scheduled", 1), ("waiting", 1)] == await rows(STATES)
        assert [("a", "ada", "7")] == await rows(WAITING)
        assert [
            ("done", "completed", "sent", None, None),
            ("failed", "failed", None, "Failed", "no such address"),
        ] == await rows(ENDED)
