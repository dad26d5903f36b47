"""Clients of the dashboard, which call the ASGI application without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dibs import Dibs
from dibs.web import Access, dibs_web
from dibs.web.reading.shared import Examination

HOST = "http://dashboard.localhost"

MARKUP = '"><b id=hostile>'
_HEADERS = "Referer User-Agent Accept-Language X-Forwarded-For X-Forwarded-Host X-Forwarded-Prefix X-Real-IP"
_PARAMS = (
    "name queue id text state after prefix attr part group filter sort page nodes nested did from csrf "
    "base self hours"
)
#: Headers and parameters of a request that all have a piece of markup.
HOSTILE_HEADERS: Mapping[str, str] = {
    **dict.fromkeys(_HEADERS.split(), MARKUP),
    "Cookie": f"dibs_csrf={MARKUP}; csrf={MARKUP}; dibs_session={MARKUP}",
}
HOSTILE_PARAMS: Mapping[str, str] = dict.fromkeys(_PARAMS.split(), MARKUP)


class Browser:
    """A client with cookies, which submits forms as a browser does."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, **params: str) -> httpx2.Response:
        return await self.client.get(path, params=params or None)

    async def text(self, path: str, **params: str) -> str:
        """Return the HTML of a page, which must exist."""
        answer = await self.get(path, **params)

        assert 200 == answer.status_code, answer.text
        return answer.text

    async def post(
        self,
        action: str,
        params: Mapping[str, str],
        fields: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Submit a form of the dashboard. `headers` replaces the Origin."""
        sent = {"Origin": HOST} if headers is None else dict(headers)
        return await self.client.post(
            f"/do/{action}", params=dict(params), data=dict(fields or {}), headers=sent
        )


@asynccontextmanager
async def browse(app: Any, **client_options: Any) -> AsyncIterator[Browser]:
    """Yield a browser for an ASGI application."""
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url=HOST, **client_options) as client:
        yield Browser(client)


def may(access: Access) -> Callable[[object], Access]:
    return lambda _: access


@pytest.fixture
async def writer(any_app: Dibs) -> AsyncIterator[Browser]:
    """A browser that may write, on a storage of each kind."""
    async with browse(dibs_web(any_app, allow=may("write"))) as browser:
        yield browser


@pytest.fixture
def unexamined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin no examination for the banner, for a test that counts the calls of a page."""

    async def begin(_: Examination) -> None: ...

    monkeypatch.setattr(Examination, "begin", begin)
    monkeypatch.setattr(Examination, "glance", lambda _: None)
