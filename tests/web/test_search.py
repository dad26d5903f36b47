"""The search by the beginning of ids, arguments and errors: it says how far its scan looked."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from dibs import Dibs
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.reading import search
from tests.web.conftest import browse
from tests.web.jobs import CountingStorage, complete, fail


def ids_of(page: str) -> list[tuple[str, str]]:
    """Return queue and id of the jobs that a search lists."""
    return re.findall(r'href="/job\?queue=([^&"]+)&amp;id=([^&"]+)"', page)


async def test_ids_are_found_by_their_beginning_in_all_queues_and_states(any_url: str) -> None:
    async with Dibs(any_url) as app, browse(dibs_web(app, allow="read")) as reader:
        red, blue = app.queue("red"), app.queue("blue")
        await complete(red, "order-1")
        await fail(red, "order-2")
        await red.enqueue({}, id="order-3", delay=60)
        await red.enqueue({}, id="other", delay=60)
        await blue.enqueue({}, id="order-4")
        await blue.enqueue({}, id="ORDER-5", delay=60)
        await blue.cancel("ORDER-5")

        page = await reader.text("/search", text="order-")
        hidden = await reader.text("/search", text="rder-5")

    assert [("blue", "order-4"), *(("red", f"order-{n}") for n in (1, 2, 3))] == ids_of(page)
    assert "6 entries were read, and 2 of 2 queues to the end." in page
    assert [] == ids_of(hidden)
    assert "no entry that was read has it" in hidden


@pytest.mark.usefixtures("unexamined")
async def test_a_long_queue_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN_SECONDS", 60.0)
    app, storage = Dibs("memory:"), CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app, browse(dibs_web(app, allow="read")) as reader:
            await app.queue("a-long-one").enqueue_many([{}] * 20_000)
            await app.queue("z-short").enqueue({}, id="order-1")
            storage.calls.clear()
            page = await reader.text("/search", text="order")

    assert [("z-short", "order-1")] == ids_of(page)
    assert "1 of 2 queues to the end. The filter on the page of a queue reads on." in page
    # One of the short list, and of the long one 25 entries, 49 times 100, and the rest of the 5,000.
    assert 52 == storage.calls.count("list")


async def test_a_list_that_does_not_come_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SCAN_SECONDS", 0.5)
    app, storage = Dibs("memory:"), CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app, browse(dibs_web(app, allow="read")) as reader:
            await app.queue("a-long-one").enqueue_many([{}] * 2000)
            await app.queue("z-short").enqueue({}, id="order-1")
            storage.calls.clear()
            storage.held["list"] = (1, asyncio.Event())
            page = await reader.text("/search", text="order")

    assert [("z-short", "order-1")] == ids_of(page)
    assert "1 entry was read, and 1 of 2 queues to the end." in page


async def test_an_exact_id_leads_to_its_job_and_the_scan_is_offered_with_several() -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        for name in ("red", "blue"):
            for id in ("a", "ab"):
                await app.queue(name).enqueue({}, id=id)

        exact = await reader.get("/search", text="ab")
        await app.queue("blue").cancel("ab")
        await app.queue("blue").forget("ab")
        two = await reader.text("/search", text="a")
        scanned = await reader.text("/search", text="a", prefix="1")

    assert 200 == exact.status_code
    assert "Look for it at the beginning of ids" in two
    assert [("red", "ab")] == [each for each in set(ids_of(scanned)) if each[1] == "ab"]


async def test_arguments_and_errors_are_searched() -> None:
    def redact(_queue: str, part: str, value: Any) -> Any:
        return {**value, "card": "…"} if part == "data" and "card" in value else value

    async with Dibs("memory:") as app, browse(dibs_web(app, redact=redact, allow="read")) as reader:
        await app.queue("orders").enqueue({"city": "Lisbon"}, id="1")
        await app.queue("orders").enqueue({"card": "4242"}, id="2")
        await fail(app.queue("mails"), "3", "ValueError", "no route to Lisbon")

        found = await reader.text("/search", text="lisbon")
        hidden = await reader.text("/search", text="4242")

    assert [("mails", "3"), ("orders", "1")] == sorted(ids_of(found))
    assert "no route to Lisbon" in found
    assert [] == ids_of(hidden)


async def test_a_hostile_id_is_escaped() -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        await app.queue("q").enqueue({}, id="x<script>alert(1)</script>\u202e")

        page = await reader.text("/search", text="x<scr")

    assert "x&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\u202e" not in page
    assert "<script>alert" not in page
