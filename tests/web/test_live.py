"""Live updates: one reading for all viewers, changes without a reload, and a storage that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx2
import pytest

from dibs import Dibs, Queue
from dibs.storage.registry import open_storage
from dibs.web import Access, dibs_web, live
from dibs.web.live import Live
from dibs.web.pages import Pages
from dibs.web.reading.source import Source
from tests.web.browser.conftest import serving
from tests.web.conftest import browse
from tests.web.jobs import CountingStorage


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again soon after an error, so that the tests are short."""
    monkeypatch.setattr(live, "RETRY_SECONDS", 0.05)


@pytest.fixture
async def counted(unexamined: None) -> AsyncIterator[tuple[Dibs, CountingStorage]]:
    app = Dibs("memory:")
    storage = CountingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app:
            yield app, storage


def show(model: Any) -> str:
    return str(model.state)


async def test_a_change_reaches_the_viewers_without_a_reload(any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a")
    pages = Pages(Source(any_app))
    watched = Live(pages)
    watch = watched.join(pages.key("job", {"queue": any_queue.name, "id": "a"}))
    async with aclosing(watched.updates(watch, "reader", show)) as updates:  # type: ignore[type-var]
        first = await anext(updates)
        await any_queue.cancel("a")
        second = await anext(updates)
    watched.leave(watch)

    assert ("page", "waiting") == first
    assert ("page", "cancelled") == second


async def test_a_hundred_viewers_cost_the_storage_one_reading(counted: tuple[Dibs, CountingStorage]) -> None:
    app, storage = counted
    await app.queue("q").enqueue({}, id="a")
    pages = Pages(Source(app))
    watched = Live(pages)
    key = pages.key("job", {"queue": "q", "id": "a"})
    storage.calls.clear()
    rendered: list[Any] = []

    def render(model: Any) -> str:
        rendered.append(model)
        return str(model.state)

    watches = [watched.join(key) for _ in range(100)]
    streams = [watched.updates(watch, "reader", render) for watch in watches]
    updates = await asyncio.gather(*(anext(stream) for stream in streams))
    for watch, stream in zip(watches, streams, strict=True):
        await stream.aclose()  # type: ignore[attr-defined]
        watched.leave(watch)

    assert {("page", "waiting")} == set(updates)
    # The end of the log is asked for once, when the scan of an id begins. The last call is for its output.
    assert ["get", "queues", "events", "events", "events"] == storage.calls
    assert 1 == len(rendered)


async def test_without_viewers_the_storage_is_left_alone(counted: tuple[Dibs, CountingStorage]) -> None:
    app, storage = counted
    pages = Pages(Source(app))
    watched = Live(pages)
    watch = watched.join(pages.key("overview", {}))
    async with aclosing(watched.updates(watch, "reader", lambda _: "")) as updates:  # type: ignore[type-var]
        await anext(updates)
    watched.leave(watch)
    assert watched._task is not None
    await asyncio.wait_for(watched._task, 10)
    storage.calls.clear()

    assert 0 == watched.viewers
    assert [] == storage.calls


async def test_a_storage_that_goes_away_and_returns_is_announced(
    counted: tuple[Dibs, CountingStorage],
) -> None:
    app, storage = counted
    await app.queue("q").enqueue({}, id="a")
    pages = Pages(Source(app))
    watched = Live(pages)
    watch = watched.join(pages.key("job", {"queue": "q", "id": "a"}))
    async with aclosing(watched.updates(watch, "reader", show)) as updates:  # type: ignore[type-var]
        before = await anext(updates)
        storage.is_away = True
        away = await anext(updates)
        storage.is_away = False
        after = await anext(updates)
    watched.leave(watch)

    assert [("page", "waiting"), ("down", "the storage is away <b>now</b>"), ("page", "waiting")] == [
        before,
        away,
        after,
    ]


async def test_a_page_of_a_storage_that_is_away_says_so_and_stays_live(
    counted: tuple[Dibs, CountingStorage],
) -> None:
    app, storage = counted
    await app.queue("emails").enqueue({})
    async with browse(dibs_web(app, allow="read")) as browser:
        storage.is_away = True
        away = await browser.get("/")
        storage.is_away = False
        after = await browser.get("/")
        storage.is_away = True
        # The page is read again once its reading is older than a second.
        while (later := await browser.get("/")).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        other = await browser.get("/queue", name="emails")

    assert 503 == away.status_code
    assert "the storage is away &lt;b&gt;now" in away.text
    assert 'data-live="/live/overview"' in away.text
    assert ">emails<" not in away.text
    assert 200 == after.status_code
    assert "Below is what it said" in later.text
    assert 'href="/queue?name=emails"' in later.text
    assert (503, False) == (other.status_code, "Below is" in other.text)


async def test_viewers_at_the_same_moment_share_a_reading(counted: tuple[Dibs, CountingStorage]) -> None:
    app, storage = counted
    async with browse(dibs_web(app, allow="read")) as browser:
        storage.calls.clear()
        await asyncio.gather(*(browser.get("/queue", name="q") for _ in range(20)))
        await asyncio.gather(*(browser.get(path) for path in ("/failures", "/workers") * 5))

    # The jobs of the queue, and the records of workers.
    assert 2 == storage.calls.count("list")
    assert 1 == storage.calls.count("queues")


async def test_viewers_of_the_storage_share_an_examination(counted: tuple[Dibs, CountingStorage]) -> None:
    app, storage = counted
    async with browse(dibs_web(app, allow="read")) as browser:
        storage.calls.clear()
        await asyncio.gather(*(browser.get("/place") for _ in range(20)))

    # The census, and the examination.
    assert 2 == storage.calls.count("queues")


async def test_a_page_that_does_not_end_is_given_up(
    counted: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = counted
    monkeypatch.setattr("dibs.web.pages.READ_TIMEOUT", 0.05)
    pages = Pages(Source(app))

    async def hang(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setitem(pages.kinds, "place", type(pages.kinds["place"])("place", "", (), 1.0, hang))
    with pytest.raises(Exception, match=r"did not answer within 0\.05 s"):
        await pages.read(("place", ()))


async def test_viewers_that_come_at_once_do_not_pass_the_limit(
    counted: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream counts from its request on, and its place is free again when it ends."""
    monkeypatch.setattr(live, "MAX_VIEWERS", 3)
    app, _ = counted
    dashboard = dibs_web(app, allow="read")
    async with serving(dashboard) as base, httpx2.AsyncClient(timeout=30) as client:
        address = f"{base}live/overview"

        async def open_stream(hold: asyncio.Event) -> httpx2.Response:
            async with client.stream("GET", address) as answer:
                statuses.put_nowait(answer.status_code)
                if answer.status_code == 200:
                    await hold.wait()
                else:
                    await answer.aread()
            return answer

        statuses: asyncio.Queue[int] = asyncio.Queue()
        end = asyncio.Event()
        streams = [asyncio.create_task(open_stream(end)) for _ in range(12)]
        seen = [await asyncio.wait_for(statuses.get(), 30) for _ in streams]
        end.set()
        answers = await asyncio.gather(*streams)
        status = 503
        async with asyncio.timeout(30):
            while status == 503:
                async with client.stream("GET", address) as again:
                    status = again.status_code
        missing = await client.get(f"{base}live/search")

    refused = [answer for answer in answers if answer.status_code == 503]
    assert [200] * 3 + [503] * 9 == sorted(seen)
    assert {"10"} == {answer.headers["retry-after"] for answer in refused}
    assert "as many live viewers as it may" in refused[0].text
    assert (200, 404) == (status, missing.status_code)


@pytest.mark.long
@pytest.mark.parametrize("later", ["none", "read"])
async def test_a_stream_ends_before_an_update_for_which_the_access_is_gone(
    counted: tuple[Dibs, CountingStorage], later: Access
) -> None:
    app, _ = counted
    access: Access = "write"
    async with (
        serving(dibs_web(app, allow=lambda _: access)) as base,
        httpx2.AsyncClient(timeout=30) as client,
        client.stream("GET", f"{base}live/overview") as stream,
    ):
        texts = stream.aiter_text()
        first = await anext(texts)
        access = later
        await app.queue("emails").enqueue({})
        rest = "".join([text async for text in texts])

    assert "event: page" in first
    assert "emails" not in rest


async def test_a_viewer_that_leaves_is_forgotten(
    counted: tuple[Dibs, CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of a closed browser ends, and the reader with it."""
    app, _ = counted
    left: asyncio.Queue[int] = asyncio.Queue()
    leave = Live.leave

    def leave_and_report(self: Live, watch: Any) -> None:
        leave(self, watch)
        left.put_nowait(self.viewers)

    monkeypatch.setattr(Live, "leave", leave_and_report)
    async with serving(dibs_web(app, allow="read")) as base, httpx2.AsyncClient(timeout=60) as client:
        async with client.stream("GET", f"{base}live/overview") as answer:
            first = await anext(answer.aiter_text())

        assert "event: page" in first
        assert 0 == await asyncio.wait_for(left.get(), 30)
