"""A reader with the offset of an empty log gets `fell_off` after a trim, on every storage."""

from __future__ import annotations

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.storage.protocol import LATEST, Storage
from dibs.storage.registry import open_storage


async def log_and_trim(storage: Storage) -> None:
    """Add two events to the log, and trim the older one or both."""
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in ("a", "b")], now=1000)
    await storage.cancel("q", ["a"], now=1000)
    await storage.cancel("q", ["b"], now=2000)
    await storage.prune("q", 10, now=2500)


async def test_a_reader_of_an_empty_log_is_told_of_trimmed_events(any_new_url: str) -> None:
    async with open_storage(any_new_url, "manual") as storage:
        await storage.configure("q", SettingsPatch(log_age=1000), now=0)
        begin = (await storage.events("q", now=0)).offset
        latest = (await storage.events("q", after=LATEST, now=0)).offset
        await log_and_trim(storage)
        page = await storage.events("q", after=begin, now=2500)
        rest = await storage.events("q", after=page.offset, now=2500)

        assert ("", "") == (begin, latest)
        assert (["b"], True) == ([event.id for _, event in page.events], page.fell_off)
        assert ((), False) == (rest.events, rest.fell_off)
        # A read without an offset asks for the events that the log still has, so it misses none.
        assert not (await storage.events("q", now=2500)).fell_off


async def test_a_reader_of_an_empty_log_is_told_if_no_event_is_left(any_new_url: str) -> None:
    async with open_storage(any_new_url, "manual") as storage:
        await storage.configure("q", SettingsPatch(log_age=1000), now=0)
        await log_and_trim(storage)
        await storage.prune("q", 10, now=9000)
        page = await storage.events("q", after="", now=9000)
        rest = await storage.events("q", after=page.offset, now=9000)

        assert ((), True) == (page.events, page.fell_off)
        assert not rest.fell_off


async def test_nothing_fell_off_a_log_that_was_not_trimmed(any_new_url: str) -> None:
    async with open_storage(any_new_url, "manual") as storage:
        empty = await storage.events("q", after="", now=0)
        await log_and_trim(storage)
        page = await storage.events("q", after="", now=2500)

        assert not empty.fell_off
        assert (2, False) == (len(page.events), page.fell_off)
