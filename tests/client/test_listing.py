"""Listings of a queue: all jobs of a state, or a page of them with a cursor."""

from __future__ import annotations

import pytest

from dibs import Queue

IDS = sorted(f"job-{number}" for number in range(7))


async def fill(queue: Queue) -> None:
    await queue.enqueue_many(queue.bind(id, id=id) for id in IDS)


async def page(queue: Queue, limit: int, after: str | None = None) -> tuple[list[str], str | None]:
    listing = queue.list("waiting", limit=limit, after=after)
    return [status.id async for status in listing], listing.cursor


async def test_pages_follow_each_other_to_the_end(any_queue: Queue) -> None:
    await fill(any_queue)
    ids: list[str] = []
    sizes: list[int] = []
    after = None

    while not sizes or after is not None:
        found, after = await page(any_queue, 3, after)
        ids += found
        sizes.append(len(found))

    assert sorted(ids) == IDS
    assert max(sizes) == 3


async def test_without_a_limit_everything_is_listed(any_queue: Queue) -> None:
    await fill(any_queue)
    listing = any_queue.list("waiting")

    assert sorted([status.data async for status in listing]) == IDS
    assert listing.cursor is None


async def test_a_page_may_be_larger_than_a_call_of_the_storage(
    any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.client.listing.PAGE_SIZE", 2)
    await fill(any_queue)

    first, after = await page(any_queue, 5)
    rest, end = await page(any_queue, 5, after)

    assert (len(first), sorted(first + rest), end) == (5, IDS, None)


async def test_the_cursor_of_a_broken_off_iteration_loses_nothing(any_queue: Queue) -> None:
    await fill(any_queue)
    listing = any_queue.list("waiting", limit=4)
    async for _ in listing:
        break
    rest, _ = await page(any_queue, 100, listing.cursor)

    assert sorted(rest) == IDS
