"""What a pooler in transaction mode asks: a session keeps nothing of ours when a transaction is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.model.requests import SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done

LEFT_BEHIND = """
SELECT (SELECT count(*) FROM pg_prepared_statements),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*) FROM pg_listening_channels()),
       current_setting('search_path'), current_setting('plan_cache_mode'), current_setting('enable_seqscan')
"""


async def every_verb(storage: PostgresStorage) -> None:
    for _ in range(5):
        await storage.configure("q", SettingsPatch(log_level="all"))
        await storage.enqueue("q", [asked("a"), asked("b")])
        jobs = await claimed(storage)
        await storage.settle("q", [done(job) for job in jobs])
        await storage.get("q", ["a"])
        await storage.list("q", "completed")
        await storage.counts(["q"])
        await storage.events("q")
        await storage.reap("q", 10)
        await storage.forget("q", ["a", "b"])
        await storage.prune("q", 10)
        await storage.wait(["q"], timeout=0.001)


async def test_a_session_keeps_nothing_of_ours(
    opening: Callable[..., PostgresStorage], monkeypatch: Any
) -> None:
    """A pooler is known by a pid of its own making; from then on nothing is prepared."""
    storage = opening()
    queries = storage._server.queries
    made_up = queries["server"].replace(b"pg_backend_pid()", b"-1")
    monkeypatch.setitem(queries._made, "server", made_up)
    async with storage:
        connections = storage._server.check_open()
        await every_verb(storage)

        assert not connections.prepares
        async with connections.one() as connection:
            left: Any = await (await connection.execute(LEFT_BEHIND)).fetchone()
    assert (0, 0, 0, '"$user", public', "auto", "on") == left
