"""Repeats of a request_key under another id, on every storage, also for keys that earlier versions stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import redis.asyncio

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import RequestKey
from dibs.storage.postgres import PostgresStorage
from dibs.storage.protocol import Storage
from dibs.storage.redis import RedisStorage
from dibs.storage.registry import open_storage


def keyed(id: str) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id), request_key="order-7")


async def enqueue(storage: Storage, id: str) -> EnqueueResult:
    (answer,) = await storage.enqueue("q", [keyed(id)])
    return answer


async def test_a_repeat_with_another_id_names_the_first_id(any_new_url: str) -> None:
    async with open_storage(any_new_url) as storage:
        first = await enqueue(storage, "first-é")
        plain = EnqueueRequest(job=NewJob(id="other"))
        other, again, more = await storage.enqueue("q", [plain, keyed("second"), keyed("third")])

        assert ("", False) == (first.id, first.repeated)
        assert ("", False) == (other.id, other.repeated)
        repeats = [(a.id, a.status, a.found, a.revision, a.repeated) for a in (again, more)]
        assert [("first-é", "queued", "nothing", first.revision, True)] * 2 == repeats
        assert 2 == (await storage.counts(["q"]))["q"].waiting


class OldRequestKey(msgspec.Struct, frozen=True, array_like=True):
    """The record of a request key as earlier versions wrote it into commit files."""

    status: str
    found: str
    first: int
    revision: int
    expires_at: int


async def file_with_an_old_key(url: str, patch: pytest.MonkeyPatch) -> None:
    put_key = QueueIndex.put_key

    def put_old_key(self: QueueIndex, key: str, after: RequestKey | None) -> None:
        assert after is not None
        old = OldRequestKey(*(getattr(after, name) for name in OldRequestKey.__struct_fields__))
        put_key(self, key, old)  # type: ignore[arg-type]

    with patch.context() as patched:
        patched.setattr(QueueIndex, "put_key", put_old_key)
        async with open_storage(url) as storage:
            await enqueue(storage, "first")


async def redis_with_an_old_key(url: str, _: pytest.MonkeyPatch) -> None:
    async with open_storage(url) as storage:
        await enqueue(storage, "first")
        assert isinstance(storage, RedisStorage)
        name = f"{storage._queue_prefix('q')}keys"
    async with redis.asyncio.Redis.from_url(url.partition("?")[0]) as client:
        record = await client.hget(name, "order-7")
        assert record is not None
        # Earlier versions stored the answer in 19 bytes and the expiry in 8.
        assert b"first" == record[27:]
        await client.hset(name, "order-7", record[:27])


async def postgres_with_an_old_key(url: str, patch: pytest.MonkeyPatch) -> None:
    """Store a key in a schema that lacks the migration of the id."""
    from dibs.storage.postgres import migrate, queries

    old = tuple(one for one in queries.migrations() if one.number <= 10)
    verbs = queries.read_queries()
    # The verbs of that version: an answer has no first_ids, and a request no job key.
    without = {
        name: text.replace(", e.first_ids", ", NULL").replace(" %(job_keys)b::text[],", "")
        for name, text in verbs.items()
    }
    with patch.context() as patched:
        patched.setattr(migrate, "migrations", lambda: old)
        patched.setattr(queries, "read_queries", lambda: without)
        async with open_storage(url) as storage:
            assert isinstance(storage, PostgresStorage)
            await enqueue(storage, "first")


WRITERS: dict[str, Callable[[str, pytest.MonkeyPatch], Awaitable[Any]]] = {
    "file": file_with_an_old_key,
    "redis": redis_with_an_old_key,
    "postgresql": postgres_with_an_old_key,
}


@pytest.mark.parametrize("any_new_url", WRITERS, indirect=True)
async def test_an_old_key_without_an_id_still_answers(
    any_new_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = any_new_url.partition(":")[0]
    await WRITERS[scheme](any_new_url, monkeypatch)

    async with open_storage(any_new_url) as storage:
        again = await enqueue(storage, "second")
        (slot,) = await storage.get("q", ["first"])

        assert slot.current is not None
        assert ("queued", slot.current.revision, True, "") == (
            again.status, again.revision, again.repeated, again.id
        )  # fmt: skip
        assert 1 == (await storage.counts(["q"]))["q"].waiting
