"""Listings of more than MAX_UNSORTED ids: bounded pages, and each id once through changes and restarts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import State
from dibs.storage.redis import RedisStorage, listing, open_url
from dibs.storage.redis.listing import MARK, Cursor
from dibs_conformance.servers import start_redis

#: Ids of a long queue. Redis keeps up to 512 entries of a hash in one list, which every scan reads whole.
MANY = 1700


def request(id: str, delay: int = 0) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, delay=delay))


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_UNSORTED", 100)


async def fill(storage: RedisStorage, count: int, prefix: str = "é", delay: int = 0) -> list[str]:
    ids = sorted(f"{prefix}{number}" for number in range(count))
    for start in range(0, count, 500):
        await storage.enqueue("q", [request(id, delay) for id in ids[start : start + 500]])
    return ids


async def read_all(
    storage: RedisStorage, limit: int, after: str | None = None, state: State = "waiting"
) -> list[str]:
    seen: list[str] = []
    while True:
        page = await storage.list("q", state, after=after, limit=limit)
        seen += [id for id, _ in page.items]
        if (after := page.after) is None:
            return seen


async def keys(storage: RedisStorage, prefix: str) -> list[bytes]:
    start = f"{prefix}:{{q}}:listing:"
    found: list[bytes] = await storage._run_command(start, "KEYS", f"{start}*")
    return found


async def test_a_queue_that_changes_has_each_id_that_stays_once(storage: RedisStorage) -> None:
    """Between the pages the hash table of the queue grows, and then shrinks to an eighth."""
    ids = await fill(storage, MANY)
    growing = await fill(storage, 6 * MANY, "new")
    seen: list[str] = []
    after = None
    while True:
        page = await storage.list("q", "waiting", after=after, limit=170)
        seen += [id for id, _ in page.items]
        if (after := page.after) is None:
            break
        leaving, growing = growing[:1500], growing[1500:]
        await storage.forget("q", leaving)
    times = Counter(seen)

    assert dict.fromkeys(ids, 1) == {id: times[id] for id in ids}
    assert 1 == max(times.values())


async def test_the_first_page_writes_nothing_and_is_the_same_again(
    storage: RedisStorage, prefix: str
) -> None:
    await fill(storage, MANY)
    first = await storage.list("q", "waiting", limit=25)

    assert 25 == len(first.items)
    assert first == await storage.list("q", "waiting", limit=25)
    assert [] == await keys(storage, prefix)
    assert first.after is not None
    assert len(first.after) < 500


async def test_a_cursor_is_read_twice_and_both_readers_see_the_rest(storage: RedisStorage) -> None:
    """A lost reply and a second reader are the same for the storage: an older cursor comes again."""
    ids = await fill(storage, MANY)
    first = await storage.list("q", "waiting", limit=100)
    second = await storage.list("q", "waiting", limit=100, after=first.after)
    seen = [id for page in (first, second) for id, _ in page.items]

    third = await storage.list("q", "waiting", limit=100, after=second.after)
    readers = [await read_all(storage, 300, second.after) for _ in range(2)]
    readers.append([id for id, _ in third.items] + await read_all(storage, 300, third.after))
    assert [ids] * 3 == [sorted(seen + rest) for rest in readers]
    from_first = await read_all(storage, 300, first.after)
    assert ids == sorted([id for id, _ in first.items] + from_first)


async def test_a_listing_goes_on_after_a_restart() -> None:
    """Another process has another hash function, so its positions mean other ids."""
    with start_redis() as server:
        async with open_url(server.url, prefix="r") as storage:
            ids = await fill(storage, MANY)
            seen, after = [], None
            for _ in range(4):
                page = await storage.list("q", "waiting", limit=200, after=after)
                seen += [id for id, _ in page.items]
                after = page.after
        server.execute("SAVE")
        server.kill()
        server.start()
        async with open_url(server.url, prefix="r") as storage:
            rest = await read_all(storage, 200, after)

    assert ids == sorted(seen + rest)


async def test_an_expired_cursor_is_refused(storage: RedisStorage, prefix: str) -> None:
    await fill(storage, MANY)
    first = await storage.list("q", "waiting", limit=100)
    second = await storage.list("q", "waiting", limit=100, after=first.after)
    [key] = await keys(storage, prefix)
    left = await storage._run_command(key.decode(), "TTL", key)
    await storage._run_command(key.decode(), "DEL", key)

    assert 3500 < left <= 3600
    with pytest.raises(Refused, match="expired"):
        await storage.list("q", "waiting", limit=100, after=second.after)
    # The cursor of the first page holds its marks, so it does not expire.
    assert MANY - 100 == len(await read_all(storage, 500, first.after))


@pytest.mark.parametrize(
    "after",
    ["scan:", "scan:x:1::1:0:", "scan::1::9:0:", "scan::1::0:0:", "scan::1:ab:1:0:", "scan::1::1:0:%"],
)
async def test_another_cursor_is_refused(storage: RedisStorage, after: str) -> None:
    with pytest.raises(Refused) as caught:
        await storage.list("q", "waiting", after=after)

    assert "after" == caught.value.field


async def test_a_rare_state_has_short_pages(storage: RedisStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduled jobs are among all waiting jobs. A page reads some of them and ends."""
    monkeypatch.setattr(listing, "MAX_READ", 300)
    await fill(storage, MANY)
    ids = await fill(storage, 7, "later", 3_600_000)
    pages, after = [], None
    while True:
        page = await storage.list("q", "scheduled", limit=25, after=after)
        pages.append([id for id, _ in page.items])
        if (after := page.after) is None:
            break

    assert ids == sorted(id for page_ids in pages for id in page_ids)
    assert 3 < len(pages)


async def test_a_server_that_forbids_info_sorts_the_ids(storage: RedisStorage, prefix: str) -> None:
    """Without INFO nothing tells one process of the server from another, so positions have no meaning."""
    async with forbidden_info(storage):
        ids = await fill(storage, MANY)

        assert ids == await read_all(storage, 300)
    assert 1 == len(await keys(storage, prefix))


@contextlib.asynccontextmanager
async def forbidden_info(storage: RedisStorage) -> AsyncIterator[None]:
    await storage._run_command("", "ACL", "SETUSER", "default", "-info")
    try:
        yield
    finally:
        await storage._run_command("", "ACL", "SETUSER", "default", "+@all")


def test_a_cursor_is_read_as_it_was_written() -> None:
    cursor = Cursor("0123456789abcdef", 7, "abcdef012345", 2, "81920", bytes(range(2 * MARK)))

    assert cursor == Cursor.parse(str(cursor), 2)
