"""The pages as JSON: what they hold, their errors, and that the rights and the hook hold for them, too."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import Dibs, Queue
from dibs.web import dibs_web
from dibs.web.pages import Pages
from dibs.web.reading.source import Source
from dibs.web.server import TokenGate
from tests.web.conftest import browse, may
from tests.web.jobs import fail

PAGES = tuple(Pages(Source(Dibs("memory:"))).kinds)


async def test_a_job_has_the_fields_of_its_page(any_app: Dibs, any_queue: Queue) -> None:
    await fail(any_queue, "a", "shop.Broken", "no luck")
    async with browse(dibs_web(any_app, allow="read")) as reader:
        answer = await reader.get("/api/job", queue=any_queue.name, id="a")
    page = answer.json()

    assert "application/json" == answer.headers["content-type"]
    assert ("a", "failed") == (page["id"], page["state"])
    assert "shop.Broken" == page["outcome"]["error"]["type"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_a_listing_goes_on_with_its_cursor(any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.enqueue_many([any_queue.bind({}, id=f"{number:02}") for number in range(60)])
    found: list[str] = []
    params = {"name": any_queue.name, "state": "waiting"}
    async with browse(dibs_web(any_app, allow="read")) as reader:
        while True:
            page = (await reader.get("/api/queue", **params)).json()
            found += [job["id"] for job in page["jobs"]]
            if page["after"] is None:
                break
            params["after"] = page["after"]

    assert [f"{number:02}" for number in range(60)] == sorted(found)
    assert 60 == page["counts"]["waiting"]


@pytest.mark.parametrize("page", PAGES)
async def test_each_page_is_an_object(page: str) -> None:
    async with Dibs("memory:", flows=True) as app:
        await app.queue("q").enqueue({}, id="a")
        async with browse(dibs_web(app, allow="read")) as reader:
            answer = await reader.get(f"/api/{page}", queue="q", name="q", id="a", text="a")

    assert 200 == answer.status_code
    assert isinstance(answer.json(), dict)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/nonsense", 404, "known pages: overview"),
        ("/api/queue?name=" + "x" * 600, 400, "queue"),
    ],
)
async def test_an_error_is_an_object(path: str, status: int, message: str) -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        answer = await reader.get(path)

    assert status == answer.status_code
    assert message in answer.json().get("error", {}).get("message", "")


async def test_rights_and_hook_hold(any_app: Dibs, any_queue: Queue) -> None:
    def redact(_queue: str, _part: str, _value: Any) -> str:
        return "hidden"

    await any_queue.enqueue({"secret": "swordfish"}, id="a", attributes={"note": "swordfish"})
    async with browse(dibs_web(any_app, allow=may("none"))) as stranger:
        assert 403 == (await stranger.get("/api/overview")).status_code
    async with browse(dibs_web(any_app, redact=redact, allow="read")) as reader:
        job = await reader.get("/api/job", queue=any_queue.name, id="a")

    assert "hidden" in job.text
    assert "swordfish" not in job.text


async def test_a_viewer_without_access_gets_the_reason_as_json() -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow=may("none"))) as stranger:
        answer = await stranger.get("/api/overview")

    assert (403, "Forbidden") == (answer.status_code, answer.json()["error"]["type"])


async def test_a_program_sends_the_token_in_a_header() -> None:
    async with Dibs("memory:") as app, browse(TokenGate(dibs_web(app, allow="read"), "t" * 24)) as reader:
        closed = await reader.client.get("/api/overview")
        wrong = await reader.client.get("/api/overview", headers={"Authorization": "Bearer " + "u" * 24})
        opened = await reader.client.get("/api/overview", headers={"Authorization": "Bearer " + "t" * 24})

    assert [401, 401, 200] == [each.status_code for each in (closed, wrong, opened)]
