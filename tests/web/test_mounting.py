"""The dashboard mounted in FastAPI, Starlette and Django: a page, a write of its own page, and no access.

Each host runs under uvicorn, as in docs/howto/dashboard.md, with its own routes next to the dashboard.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dibs import Dibs
from dibs.web import Access, Dashboard, dibs_web
from tests.source import PROJECT
from tests.web.browser.conftest import serving

#: Value of the cookie `session` -> access.
STAFF: dict[str, Access] = {"ada": "write", "bob": "read"}


def allow(request: Request) -> Access:
    return STAFF.get(request.cookies.get("session", ""), "none")


def in_fastapi(dashboard: Dashboard) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await dashboard.prepare()
        yield

    api = FastAPI(lifespan=lifespan)

    @api.get("/orders")
    async def orders() -> str:
        return "the orders"

    api.mount("/jobs", dashboard)
    return api


def in_starlette(dashboard: Dashboard) -> Any:
    def orders(_: Request) -> PlainTextResponse:
        return PlainTextResponse("the orders")

    return Starlette(routes=[Mount("/jobs", dashboard), Route("/orders", orders)])


async def check(client: httpx2.AsyncClient, base: str) -> None:
    """Pause the queue `emails` as its page does, and try the same with each part of the protection missing.

    `client` has the access "write", and `base` is the address of the host without a slash.
    """
    page = await client.get(f"{base}/jobs/queue?name=emails")
    origin = {"Origin": base}
    pause = f"{base}/jobs/do/pause?queue=emails"
    refused = [
        await client.post(pause),
        await client.post(pause, headers={"Origin": "https://evil.example"}),
        await client.get(pause),
    ]
    unchanged = await client.get(f"{base}/jobs/queue?name=emails")
    written = await client.post(pause, headers=origin)
    script = page.text.partition('src="')[2].partition('"')[0]

    assert "set-cookie" not in page.headers
    assert 200 == (await client.get(f"{base}{script}")).status_code
    assert [403, 403, 405] == [answer.status_code for answer in refused]
    assert "Resume</button>" not in unchanged.text
    assert (303, "/jobs/queue?name=emails&did=pause") == (written.status_code, written.headers["location"])
    assert "Resume</button>" in (await client.get(f"{base}/jobs/queue?name=emails")).text
    assert "the orders" in (await client.get(f"{base}/orders")).text


@pytest.mark.parametrize("host", [in_fastapi, in_starlette])
async def test_a_mounted_dashboard_shows_and_writes(host: Any, tmp_path: Path) -> None:
    async with Dibs(f"file:{tmp_path}/jobs") as app:
        await app.queue("emails").enqueue({}, id="a")
        async with serving(host(dibs_web(app, allow=allow)), lifespan="auto") as address:
            base = address.rstrip("/")
            async with httpx2.AsyncClient(cookies={"session": "ada"}, timeout=60) as client:
                await check(client, base)
            for name, status in (("bob", 200), ("eve", 403)):
                async with httpx2.AsyncClient(cookies={"session": name}, timeout=60) as client:
                    page = await client.get(f"{base}/jobs/queue?name=emails")

                assert status == page.status_code
                assert 'method="post"' not in page.text
        [info] = [info for info in await app.storage.queues() if info.name == "emails"]

        assert info.settings.paused


DJANGO = """
import asyncio, os, sys
from importlib import import_module

from django.conf import settings

folder = sys.argv[1]
settings.configure(
    SECRET_KEY="only for tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/site.sqlite"}},
)
from django.core.asgi import get_asgi_application

django = get_asgi_application()

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, aget_user
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from dibs.web import Access, dibs_web
from tests.web.browser.conftest import serving

urlpatterns = [path("orders", lambda request: HttpResponse("the orders"))]
SessionStore = import_module(settings.SESSION_ENGINE).SessionStore


async def allow(request: Request) -> Access:
    known = HttpRequest()
    known.session = SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
    user = await aget_user(known)
    return "write" if user.is_superuser else "read" if user.is_staff else "none"


def log_in(name, **rights):
    user = User.objects.create_user(name, **rights)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return session.session_key


async def main(keys):
    dashboard = dibs_web(f"file:{folder}/jobs", allow=allow)
    application = Starlette(routes=[Mount("/jobs", dashboard), Mount("/", django)])
    async with serving(application) as address:
        print(address.rstrip("/"), *keys, flush=True)
        await asyncio.to_thread(sys.stdin.read)


call_command("migrate", verbosity=0)
asyncio.run(main([log_in("ada", is_superuser=True), log_in("bob", is_staff=True), log_in("eve")]))
"""


@contextmanager
def django_site(folder: Path) -> Iterator[list[str]]:
    """Run the site in a process of its own, because the settings of Django are global.

    Yield its address, and the session keys of a superuser, of staff and of another user.
    """
    script = folder / "django_site.py"
    script.write_text(DJANGO)
    paths = os.pathsep.join(map(str, (PROJECT, PROJECT / "src")))
    with subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()
        process.communicate()

    assert 0 == process.returncode


@pytest.mark.long
async def test_a_dashboard_in_django_reads_the_session_of_django(tmp_path: Path) -> None:
    async with Dibs(f"file:{tmp_path}/jobs") as app:
        await app.queue("emails").enqueue({}, id="a")
        with django_site(tmp_path) as (base, ada, bob, eve):
            async with httpx2.AsyncClient(cookies={"sessionid": ada}, timeout=60) as client:
                await check(client, base)
            for key, status in ((bob, 200), (eve, 403), ("none", 403)):
                async with httpx2.AsyncClient(cookies={"sessionid": key}, timeout=60) as client:
                    page = await client.get(f"{base}/jobs/queue?name=emails")

                assert status == page.status_code
                assert 'method="post"' not in page.text
        [info] = [info for info in await app.storage.queues() if info.name == "emails"]

        assert info.settings.paused
