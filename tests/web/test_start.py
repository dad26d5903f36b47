"""The start of the dashboard: templates are compiled and the storage is open before the first page."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from dibs import Dibs
from dibs.web import application, dibs_web
from dibs.web.application import TEMPLATES
from dibs.web.server import ServerOptions, serve
from tests.web.conftest import browse, may
from tests.web.jobs import fail

TEMPLATE_NAMES = sorted(file.name for file in TEMPLATES.iterdir())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The name of each template that Jinja compiles, and the thread that does it."""
    # The templates are compiled once in a process, perhaps by an earlier test.
    application._environment.cache_clear()
    done: list[tuple[str, int]] = []
    original = Environment.compile

    def count(self: Environment, source: Any, name: str | None = None, *args: Any, **kwargs: Any) -> Any:
        done.append((name or "", threading.get_ident()))
        return original(self, source, name, *args, **kwargs)

    monkeypatch.setattr(Environment, "compile", count)
    return done


async def test_no_request_compiles_a_template_after_the_preparation(
    compiled: list[tuple[str, int]],
) -> None:
    async with Dibs("memory:") as app:
        dashboard = dibs_web(app, allow=may("write"))
        await dashboard.prepare()
        prepared = [name for name, _ in compiled]
        await fail(app.queue("q"), "a")
        async with browse(dashboard) as browser:
            for page in dashboard._pages.kinds:
                await browser.get("/" if page == "overview" else f"/{page}", name="q", queue="q", id="a")
            selection = {"act": "forget", "job": "a"}
            answers = [
                await browser.post("selected", {"queue": "q"}, selection),
                await browser.post("retry_matching", {"queue": "q"}),
                await browser.post("retry", {"queue": "", "id": "a"}),
            ]

    assert [200, 200, 400] == [answer.status_code for answer in answers]
    assert TEMPLATE_NAMES == sorted(prepared)
    assert len(prepared) == len(compiled)


async def test_the_first_request_of_a_mounted_dashboard_compiles_in_a_thread(
    compiled: list[tuple[str, int]],
) -> None:
    mounted = Starlette(routes=[Mount("/jobs", dibs_web("memory:", allow="read"))])
    async with browse(mounted) as browser:
        await asyncio.gather(*(browser.get("/jobs/") for _ in range(3)))
        await browser.get("/jobs/failures")

    assert TEMPLATE_NAMES == sorted(name for name, _ in compiled)
    assert threading.get_ident() not in {thread for _, thread in compiled}


def test_the_start_of_a_server_prepares_the_dashboard(compiled: list[tuple[str, int]], tmp_path: Any) -> None:
    app = Dibs(f"file:{tmp_path}/jobs")
    with TestClient(dibs_web(app, allow="read")):
        assert TEMPLATE_NAMES == sorted(name for name, _ in compiled)
        assert app.storage.capabilities is not None


async def test_a_storage_that_cannot_be_opened_does_not_stop_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Dibs("redis://ada:swordfish@127.0.0.1:1/0?socket_timeout=1", call_timeout=1)
    await dibs_web(app, allow="read").prepare()

    assert "the storage cannot be opened yet" in caplog.text
    assert "swordfish" not in caplog.text


async def test_the_server_is_prepared_before_it_gives_its_address(
    compiled: list[tuple[str, int]], tmp_path: Any
) -> None:
    options = ServerOptions(host="127.0.0.1", port=0, write=False, hide_values=False)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(Dibs(f"file:{tmp_path}/jobs"), options, address.set_result))
    try:
        url = await asyncio.wait_for(address, 60)
        prepared = [name for name, _ in compiled]
        async with httpx2.AsyncClient(timeout=60) as client:
            answer = await client.get(url)
    finally:
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server

    assert 200 == answer.status_code
    assert TEMPLATE_NAMES == sorted(prepared)
    assert len(prepared) == len(compiled)
