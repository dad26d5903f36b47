"""Wake-ups by notifications, and by the poll where notifications do not arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import NotRunning
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.network.test_errors import kill_all_others

Opening = Callable[..., PostgresStorage]
#: A wait that returns within this many seconds was woken by a notification: the poll comes after 30 s.
PROMPT = 5.0


@pytest.fixture
def options() -> dict[str, float]:
    return {"poll": 30.0}


async def begun(storage: PostgresStorage, **what: Any) -> asyncio.Task[Any]:
    """Start a wait, and return its task once it sleeps."""
    task = asyncio.create_task(storage.wait(["q"], timeout=PROMPT, **what))
    while not any(not wait.woken for wait in storage._waits.notifications.waits):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    return task


@pytest.mark.parametrize("watch", ["ids", "progress"])
async def test_an_end_ends_a_wait_for_its_id_only(
    opening: Opening, options: dict[str, float], watch: str
) -> None:
    async with opening(**options) as here, opening(**options) as there:
        await there.enqueue("q", [asked("a"), asked("b")])
        a, b = await claimed(there)
        # The first wait ends early: it subscribes.
        await here.wait(["q"], for_=watch, ids=["a"], timeout=0)  # type: ignore[arg-type]
        waiting = await begun(here, for_=watch, ids=["a"])
        await there.settle("q", [done(b)])
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await there.settle("q", [done(a)])

        assert (await waiting).woken


async def test_events_end_a_wait_for_events(opening: Opening, options: dict[str, float]) -> None:
    async with opening(**options) as here, opening(**options) as there:
        await there.enqueue("q", [asked("a")])
        (job,) = await claimed(there)
        waiting = await begun(here, for_="events")
        await there.settle("q", [done(job)])
        wake = await waiting

        assert wake.woken
        assert "" == wake.since["q"]
        again = await here.wait(["q"], for_="events", since=wake.since, timeout=PROMPT)
        assert again.woken
        assert (await here.events("q")).offset.startswith(again.since["q"])


async def test_a_dead_listener_is_noticed_and_restored(
    opening: Opening, options: dict[str, float], connect: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with opening(**options) as storage:
        await storage.enqueue("q", [asked("a")])
        await claimed(storage)
        await storage.wait(["q"], timeout=0.01)
        await kill_all_others(await connect())
        for _ in range(500):
            if "wake-ups are back" in caplog.text:
                break
            await asyncio.sleep(0.01)
        waiting = await begun(storage)
        await storage.enqueue("q", [asked("b")])

        assert (await waiting).woken
        assert "no wake-ups, polling until they are back" in caplog.text


async def test_without_notifications_the_poll_finds_it(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener's own test notification never arrives, as behind a pooler in transaction mode."""
    monkeypatch.setattr("dibs.storage.postgres.wakeups.listener.ECHO_SECONDS", 0.05)
    async with opening(poll=0.1) as storage:
        storage._waits.listener._channel = "another"
        await storage.enqueue("q", [asked("x")])
        await claimed(storage)
        monkeypatch.setattr("dibs.storage.postgres.wakeups.listener.Notifications.receive", lambda *_: None)
        waiting = asyncio.create_task(storage.wait(["q"], timeout=PROMPT))
        await asyncio.sleep(0.3)
        await storage.enqueue("q", [asked("a")])

        assert (await waiting).woken


async def test_closing_ends_the_waits(opening: Opening, options: dict[str, float]) -> None:
    storage = await opening(**options).__aenter__()
    await storage.enqueue("q", [asked("a", delay=60_000)])
    waiting = await begun(storage)
    await storage.__aexit__(None, None, None)

    with pytest.raises(NotRunning):
        await waiting


async def test_no_notification_is_sent_without_a_listener(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    await storage.enqueue("q", [asked("a")])
    mine = await connect()
    await mine.set_autocommit(True)
    await mine.execute(
        "UPDATE queues SET work_until = '-infinity', events_until = '-infinity', ids_until = now()"
    )
    await mine.execute(f"LISTEN {storage._server.queries.channel}")
    await storage.enqueue("q", [asked("b")])
    await storage.settle("q", [done(job) for job in await claimed(storage)])

    assert [] == [notice async for notice in mine.notifies(timeout=0.1)]


async def test_lost_notifications_may_have_ended_any_id(opening: Opening, options: dict[str, float]) -> None:
    """The caller of a wait for ids then reads the state of all its ids."""
    async with opening(**options) as here:
        await here.enqueue("q", [asked("a")])
        since = (await here.wait(["q"], for_="ids", ids=["a"], timeout=0)).since
        waiting = await begun(here, for_="ids", ids=["a"], since=since)
        here._waits.notifications.wake_all()
        found = await waiting

        assert found.woken
        assert found.ended is None


@pytest.mark.parametrize("ids", [["a"], []])
async def test_a_report_ends_a_wait_for_progress(
    opening: Opening, options: dict[str, float], ids: list[str]
) -> None:
    async with opening(**options) as here, opening(**options) as there:
        await there.enqueue("q", [asked("a"), asked("b")])
        a, b = await claimed(there)
        await here.wait(
            ["q"], for_="progress", ids=ids, timeout=0
        )  # the first wait ends early: it subscribes
        waiting = await begun(here, for_="progress", ids=ids)
        await there.report("q", "a", a.run.fence, memo=b"only a memo")  # type: ignore[union-attr]
        await there.report("q", "a", a.run.fence - 1, b"1")  # type: ignore[union-attr]
        if ids:
            await there.report("q", "b", b.run.fence, b"1")  # type: ignore[union-attr]
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await there.report("q", "a", a.run.fence, b"1")  # type: ignore[union-attr]

        result = await waiting
        assert (True, frozenset("a")) == (result.woken, result.reported)


async def test_a_token_from_before_the_report_names_its_id(
    opening: Opening, options: dict[str, float]
) -> None:
    async with opening(**options) as here, opening(**options) as there:
        await there.enqueue("q", [asked("a")])
        (job,) = await claimed(there)
        since = (await here.wait(["q"], for_="progress", ids=["a"], timeout=0)).since
        await there.report("q", "a", job.run.fence, b"1")  # type: ignore[union-attr]
        while here._waits.notifications.token("progress", "q") == since["q"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        result = await here.wait(["q"], for_="progress", ids=["a"], since=since, timeout=PROMPT)

        assert (True, frozenset("a")) == (result.woken, result.reported)


async def test_a_report_notifies_only_while_a_client_listens(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    await storage.enqueue("q", [asked("a")])
    (job,) = await claimed(storage)
    connection = await connect()
    await connection.set_autocommit(True)
    await connection.execute(f"LISTEN {storage._server.queries.channel}")
    for until in ("clock_timestamp() - interval '1 second'", "clock_timestamp() + interval '1 hour'"):
        await connection.execute(f"UPDATE queues SET progress_until = {until}")
        await storage.report("q", "a", job.run.fence, b"1")  # type: ignore[union-attr]
    heard = [one.payload async for one in connection.notifies(timeout=PROMPT, stop_after=1)]
    more = [one.payload async for one in connection.notifies(timeout=0.1)]

    assert [["p", '["a"]']] == [payload.split(" ")[1:] for payload in heard]
    assert [] == more


async def test_the_tokens_of_a_wait_show_which_queue_has_changed(
    opening: Opening, options: dict[str, float]
) -> None:
    """A worker then claims in that queue alone."""
    async with opening(**options) as storage:
        await storage.grant(["q", "r"], 60_000, "worker")
        before = (await storage.wait(["q", "r"], timeout=0)).since
        waiting = asyncio.create_task(storage.wait(["q", "r"], since=before, timeout=PROMPT))
        await asyncio.sleep(0.05)
        await storage.enqueue("r", [asked("a")])
        after = await waiting

    assert after.woken
    assert (before["q"], True) == (after.since["q"], before["r"] != after.since["r"])
