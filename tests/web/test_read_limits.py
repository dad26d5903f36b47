"""Every read of the dashboard has a limit at the server of its storage."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from dibs import Dibs, Queue
from dibs.storage.postgres.network import server
from dibs.storage.read_limits import read_limit
from dibs.storage.registry import open_storage
from dibs.web import dibs_web
from dibs.web.pages import Pages
from dibs.web.reading.shared import READ_TIMEOUT
from dibs.web.reading.source import Source
from tests.web.conftest import browse, may
from tests.web.jobs import CountingStorage, fail

READS: Final = ("get", "list", "counts", "queues", "events")
PARAMS: Final = {
    "queue": "name=q&state=failed&prefix=a",
    "job": "queue=q&id=a",
    "search": "text=a",
    "flow": "id=a",
    "enqueue": "queue=q",
}


class NotingStorage(CountingStorage):
    """A storage that notes the limit of each read."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.limits: set[tuple[str, float | None]] = set()

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in READS or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.limits.add((name, read_limit.get()))
            return await found(*args, **kwargs)

        return call


@pytest.mark.parametrize("page", [*Pages(Source(Dibs("memory:"))).kinds, "do/retry_matching"])
async def test_each_page_reads_with_a_limit(page: str) -> None:
    app = Dibs("memory:", flows=True)
    storage = NotingStorage(open_storage("memory:"))
    with app.override_storage(storage):
        async with app:
            await fail(app.queue("q"), "a")
            async with browse(dibs_web(app, allow=may("write"))) as browser:
                storage.limits.clear()
                if page == "do/retry_matching":
                    answer = await browser.post("retry_matching", {"queue": "q"})
                else:
                    path = "" if page == "overview" else page
                    answer = await browser.get(f"/{path}?{PARAMS.get(page, '')}")

    assert answer.status_code in (200, 303)
    assert {READ_TIMEOUT} == {limit for _, limit in storage.limits} or page in ("history", "enqueue")
    assert read_limit.get() is None


@pytest.mark.parametrize("any_url", ["postgresql"], indirect=True)
async def test_each_statement_of_the_pages_has_a_limit(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Postgres has statements."""
    await fail(any_queue, "a")
    limits: list[tuple[str, str]] = []
    run: Callable[..., Any] = server.run_statement

    async def noting(connection: Any, query: bytes, params: Any) -> Any:
        [(limit,)] = await (await connection.execute("SHOW statement_timeout")).fetchall()
        limits.append((limit, re.sub(r"\s+", " ", query.decode())[:60]))
        return await run(connection, query, params)

    monkeypatch.setattr(server, "run_statement", noting)
    async with browse(dibs_web(any_app, allow="read")) as browser:
        for page in ("", "failures", "workers", "periodic", "flows", "place"):
            await browser.text(f"/{page}")
        await browser.text("/queue", name=any_queue.name, state="failed")
        await browser.text("/job", queue=any_queue.name, id="a")

    assert len(limits) > 10
    # The findings of the doctor compare clocks by a renewal of no lease, which is a verb that may write.
    assert [] == [query for limit, query in limits if limit != "5s" and "r.ends_at" not in query]
