"""The server of `dibs web`: its token and cookie, its limits of connections, and what reaches its pages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest
import uvicorn
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from dibs import Dibs
from dibs.web import application, dibs_web, server
from dibs.web.application import TEMPLATES
from dibs.web.server import COOKIE, ServerOptions, serve
from tests.web.conftest import HOSTILE_HEADERS, HOSTILE_PARAMS, MARKUP, browse, may
from tests.web.jobs import fail
from tests.web.test_hidden_values import PAGES

TOKEN = "t" * 24


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[str]:
    """Run the server of `dibs web` in this event loop; yield its address without the token."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    chosen: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "write": False, "hide_values": False}
    started: list[uvicorn.Server] = []

    class KeptServer(uvicorn.Server):
        """A server that this test can stop. pytest handles the signals."""

        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            self.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn, "Server", KeptServer)
        app, chosen = Dibs(f"file:{folder}/jobs"), chosen | {"token": TOKEN} | options
        task = asyncio.create_task(serve(app, ServerOptions(**chosen), address.set_result))
        try:
            yield (await asyncio.wait_for(address, 60)).partition("?")[0]
        finally:
            started[0].should_exit = True
            await task


async def test_the_token_opens_a_path_that_has_the_cookie_for_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, write=True) as base, httpx2.AsyncClient(timeout=60) as client:
        closed = await client.get(f"{base}queue?name=q")
        wrong = await client.get(f"{base}queue?name=q&token={'u' * 24}")
        opened = await client.get(f"{base}queue?name=q&token={TOKEN}")
        inside = urljoin(base, opened.headers["location"])
        page = await client.get(inside)
        # httpx sends a cookie as a browser does: with requests below its path.
        outside = await client.get(f"{base}queue?name=q")
        origin = {"Origin": base.removesuffix("/")}
        written = await client.post(urljoin(inside, "do/pause?queue=q"), headers=origin)
        cookie = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
        client.cookies.clear()
        path_alone = await client.get(inside)
        cookie_alone = await client.get(f"{base}queue?name=q", headers=cookie)

    folder = urlsplit(inside).path.removesuffix("queue")
    assert [401, 401, 303] == [each.status_code for each in (closed, wrong, opened)]
    assert [200, 401, 303] == [each.status_code for each in (page, outside, written)]
    assert [401, 401] == [path_alone.status_code, cookie_alone.status_code]
    assert 34 == len(folder)
    assert f"{folder}queue?name=q&did=pause" == written.headers["location"]
    assert {f"Path={folder}", "HttpOnly", "SameSite=lax"} == set(opened.headers["set-cookie"].split("; ")[1:])
    assert TOKEN not in opened.headers["set-cookie"] + opened.headers["location"]


async def test_the_cookie_is_secure_behind_tls(tmp_path: Path) -> None:
    """A proxy of this machine passes the scheme in X-Forwarded-Proto."""
    async with serving(tmp_path, write=True) as base, httpx2.AsyncClient(timeout=60) as client:
        answer = await client.get(f"{base}?token={TOKEN}", headers={"X-Forwarded-Proto": "https"})

    assert "Secure" in answer.headers["set-cookie"].split("; ")


@pytest.mark.parametrize(
    "path", ["//evil.example/", "/\\evil.example", "/%5cevil.example", "///evil.example"]
)
async def test_the_token_leads_to_no_other_site(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, write=True) as base:
        request = f"GET {path}?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        reader, writer = await connect(base, request.encode())
        head = (await reader.read()).partition(b"\r\n\r\n")[0].decode().lower()
        writer.close()
    [location] = [line.partition(": ")[2] for line in head.splitlines() if line.startswith("location: ")]

    # A browser reads a backslash as a slash.
    assert urlsplit(base).netloc == urlsplit(urljoin(base, location.replace("\\", "/"))).netloc


async def test_no_value_of_a_request_reaches_an_answer_as_markup(tmp_path: Path) -> None:
    """Cookies, headers and parameters: a page repeats some of them, and each is escaped."""
    async with serving(tmp_path) as base, httpx2.AsyncClient(headers=HOSTILE_HEADERS, timeout=60) as client:
        for path in ("", *PAGES[1:], "static/dibs.js", "nothing", f"{MARKUP}/x", "do/pause"):
            answer = await client.get(f"{base}{path}", params=HOSTILE_PARAMS)

            assert answer.status_code < 500
            assert MARKUP not in answer.text, path
            assert "set-cookie" not in answer.headers, path


# -- connections ---------------------------------------------------------------------------------------------


async def connect(base: str, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(base).port)
    writer.write(sent)
    return reader, writer


async def answer_until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that the server sends before it closes a connection. Raises TimeoutError."""
    answer = b""
    with suppress(ConnectionError):
        while chunk := await asyncio.wait_for(reader.read(1000), 30):
            answer += chunk
    return answer


SLOW = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "half a body": b"POST /do/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n",
}


@pytest.mark.long
@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
async def test_a_request_that_comes_too_slowly_is_cut_and_a_stream_is_not(
    tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1.0)
    async with (
        serving(tmp_path) as base,
        httpx2.AsyncClient(timeout=30) as client,
        client.stream("GET", f"{base}live/overview") as stream,
    ):
        texts = stream.aiter_text()
        await anext(texts)
        reader, writer = await connect(base, sent)

        async def drip() -> None:
            with suppress(ConnectionError):
                while sent:
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(0.2)

        dripping = asyncio.create_task(drip())
        # The time limit of this call fails the test.
        await answer_until_closed(reader)
        dripping.cancel()
        writer.close()
        async with Dibs(f"file:{tmp_path}/jobs") as app:
            await app.queue("emails").enqueue({})
        while "emails" not in await anext(texts):
            pass


async def test_connections_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request beyond the limit gets an answer, and connections beyond the spare ones are closed."""
    monkeypatch.setattr(server, "SPARE_CONNECTIONS", 2)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with serving(tmp_path) as base:
        idle = [await connect(base) for _ in range(4)]
        reader, writer = await connect(base, request)
        refused = await answer_until_closed(reader)
        idle += [await connect(base) for _ in range(2)]
        closed = await answer_until_closed(idle[-1][0])
        for _, each in [*idle, (reader, writer)]:
            each.close()

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"" == closed


# -- The start of the dashboard: templates are compiled and the storage is open before the first page --


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
                await browser.post("matching", {"queue": "q"}),
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
