"""The writes of the JSON API: their effect in the storage, their answers, and who may send them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from dibs import Dibs, Queue
from dibs.model.overrides import Overrides
from dibs.web import dibs_web
from dibs.web.json_api import ACTIONS
from dibs.web.safety import MAX_BODY
from dibs.web.server import TokenGate
from tests.web import shop
from tests.web.conftest import HOST, Browser, browse, may
from tests.web.jobs import claim, fail, slot_of

#: Headers of a browser that is on a page of another site, and of one on a page of the dashboard.
FOREIGN = ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"})
OWN = {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}


async def send(browser: Browser, action: str, params: dict[str, str], **fields: Any) -> httpx2.Response:
    return await browser.client.post(f"/api/{action}", params=params, json=fields)


@pytest.fixture
async def jobs() -> AsyncIterator[Dibs]:
    """An app with a waiting job `a` in the queue `q`."""
    async with Dibs("memory:") as app:
        await app.queue("q").enqueue({"n": 1}, id="a")
        yield app


async def is_unchanged(app: Dibs) -> bool:
    slot = await slot_of(app.queue("q"), "a")
    counts = await app.queue("q").counts()
    return slot.current is not None and slot.current.data.priority == 0 and counts.waiting == 1


async def test_a_job_is_enqueued_with_its_settings(writer: Browser, any_queue: Queue) -> None:
    answer = await send(
        writer,
        "enqueue",
        {"queue": any_queue.name},
        data={"to": "ada"},
        id="a",
        priority=5,
        run_at="2100-01-01T00:00:00Z",
        attributes={"team": "red"},
    )
    job = (await slot_of(any_queue, "a")).current

    assert (200, "queued", "a") == (answer.status_code, answer.json()["answer"], answer.json()["id"])
    assert job is not None
    assert ({"to": "ada"}, 5, 4_102_444_800_000) == (
        json.loads(job.data.payload),
        job.data.priority,
        job.run_at,
    )
    assert {"team": b'"red"'} == dict(job.data.attributes)


async def test_a_repeat_answers_as_the_client_does(writer: Browser, any_queue: Queue) -> None:
    params = {"queue": any_queue.name}
    verdicts = [(await send(writer, "enqueue", params, data={}, id="a")).json()["answer"] for _ in "12"]
    await claim(any_queue)
    verdicts.append((await send(writer, "enqueue", params, data={}, id="a")).json()["answer"])

    assert ["queued", "updated", "blocked"] == verdicts


async def test_a_task_is_called_with_arguments_by_name() -> None:
    async with shop.app, browse(dibs_web(shop.app, allow=may("write"))) as browser:
        answer = await send(browser, "enqueue", {"queue": "thumbs"}, arguments={"path": "a.png"}, id="t")
        wrong = await send(browser, "enqueue", {"queue": "thumbs"}, arguments={"width": 3})
        slot = await slot_of(shop.app.queue("thumbs"), "t")
        await shop.app.queue("thumbs").cancel("t")

    assert "queued" == answer.json()["answer"]
    assert slot.current is not None
    assert b"a.png" in slot.current.data.payload
    assert (400, True) == (wrong.status_code, "path" in wrong.json()["error"]["message"])


async def test_an_argument_named_self_is_refused_by_name() -> None:
    async with shop.app.using("memory:") as app, browse(dibs_web(app, allow=may("write"))) as browser:
        answer = await send(browser, "enqueue", {"queue": "thumbs"}, arguments={"path": "a.png", "self": 1})

    assert 400 == answer.status_code
    assert "unexpected keyword argument 'self'" in answer.json()["error"]["message"]


async def test_a_signal_is_sent(writer: Browser, any_queue: Queue) -> None:
    params = {"queue": any_queue.name, "id": "a"}
    await any_queue.enqueue({}, id="a", delay="1h")

    sent = await send(writer, "signal", params, name="approved", value={"by": "ada"}, request_key="k")
    absent = await send(writer, "signal", {**params, "id": "b"}, name="approved")
    bad = await send(writer, "signal", params, value=1)

    assert ["delivered", "absent"] == [sent.json()["answer"], absent.json()["answer"]]
    assert 400 == bad.status_code
    assert "name" in bad.json()["error"]["message"]
    job = (await slot_of(any_queue, "a")).current
    assert job is not None
    assert [b'{"json":{"by":"ada"}}'] == [raw.replace(b" ", b"") for raw in job.data.attributes.values()]


async def test_a_waiting_job_is_amended_and_cancelled(writer: Browser, any_queue: Queue) -> None:
    params = {"queue": any_queue.name, "id": "a"}
    await any_queue.enqueue({}, id="a")

    amended = await send(writer, "amend", params, priority=7, data=[1], lease="90s")
    job = (await slot_of(any_queue, "a")).current
    cancelled = await send(writer, "cancel", params)
    again = await send(writer, "cancel", {"queue": any_queue.name, "id": "other"})

    assert job is not None
    assert ("amended", 7, b"[1]") == (amended.json()["answer"], job.data.priority, job.data.payload)
    assert Overrides(lease=90_000) == job.data.overrides
    assert ["cancelled", "not_found"] == [cancelled.json()["answer"], again.json()["answer"]]


async def test_a_run_is_asked_to_stop(writer: Browser, any_queue: Queue) -> None:
    params = {"queue": any_queue.name, "id": "a"}
    await any_queue.enqueue({}, id="a")
    await claim(any_queue)

    answers = [
        (await send(writer, "cancel", params)).json(),
        (await send(writer, "cancel", params, running=True)).json(),
    ]

    assert [{"answer": "active"}, {"answer": "requested"}] == answers


async def test_a_failed_job_is_retried_and_an_outcome_forgotten(writer: Browser, any_queue: Queue) -> None:
    params = {"queue": any_queue.name, "id": "a"}
    await fail(any_queue, "a")
    retried = await send(writer, "retry", params)
    await any_queue.cancel("a")
    forgotten = [await send(writer, "forget", params) for _ in "12"]

    assert {"answer": "queued"} == retried.json()
    assert ["forgotten", "not_found"] == [each.json()["answer"] for each in forgotten]


async def test_a_queue_is_paused_resumed_and_limited(writer: Browser, any_queue: Queue) -> None:
    params = {"queue": any_queue.name}
    await any_queue.enqueue({}, id="a")

    assert {"answer": "paused"} == (await send(writer, "pause", params)).json()
    assert [] == await claim(any_queue)
    assert {"answer": "resumed"} == (await send(writer, "resume", params)).json()
    answer = await send(writer, "configure", params, max_active=3, rate="5/s", log_level="all")
    settings = (await writer.get("/api/queue", name=any_queue.name)).json()["settings"]

    assert {"answer": "configured"} == answer.json()
    assert ["max_active", "3"] in settings
    assert any("rate" == name and text.startswith("5 in 1 s") for name, text in settings)


async def test_a_flow_is_cancelled_and_retried() -> None:
    async with Dibs("memory:", flows=True) as app, browse(dibs_web(app, allow=may("write"))) as browser:
        step = app.task(queue="step")(_step)
        flow = app.flow(id="f")
        flow.add(step.bind())
        await flow.enqueue()
        cancelled = await send(browser, "cancel_flow", {"id": "f"})
        retried = await send(browser, "retry_flow", {"id": "f"})
        missing = await send(browser, "cancel_flow", {"id": "nobody"})

    assert (200, 200, 200) == (cancelled.status_code, retried.status_code, missing.status_code)
    assert "not_found" == missing.json()["answer"]
    assert "not_found" != cancelled.json()["answer"]


async def _step() -> None: ...


@pytest.mark.parametrize(
    ("action", "body", "message"),
    [
        ("enqueue", {"data": 1, "colour": "red"}, "unknown field 'colour'"),
        ("enqueue", {}, "pass data, or the arguments"),
        ("enqueue", {"data": 1, "arguments": {}}, "one of the two"),
        ("enqueue", {"arguments": {}}, "no task"),
        ("enqueue", {"data": 1, "priority": 5000}, "priority"),
        ("enqueue", {"data": 1, "run_at": "soon"}, "ISO 8601"),
        ("enqueue", {"data": 1, "run_at": 7}, "ISO 8601"),
        ("enqueue", {"data": 1, "delay": "soon"}, "delay"),
        ("enqueue", [1], "no object"),
        ("amend", {}, "no field"),
        ("amend", {"id": "b"}, "unknown field 'id'"),
        ("cancel", {"running": "yes"}, "pass true or false"),
        ("configure", {"rate": "often"}, "rate"),
        ("pause", {"now": True}, "takes: none"),
    ],
)
async def test_a_bad_body_is_refused_before_anything_is_written(
    jobs: Dibs, action: str, body: Any, message: str
) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answer = await browser.client.post(f"/api/{action}", params={"queue": "q", "id": "a"}, json=body)

    assert (400, True) == (answer.status_code, message in answer.json()["error"]["message"])
    assert await is_unchanged(jobs)


@pytest.mark.parametrize(("content", "status"), [(b"{", 400), (b"[" * 100_000, 400), (b" " * 5_000_000, 413)])
async def test_a_body_that_cannot_be_read_is_refused(jobs: Dibs, content: bytes, status: int) -> None:
    assert len(content) < MAX_BODY or 413 == status
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        headers = {"Content-Type": "application/json"}
        answer = await browser.client.post("/api/amend?queue=q&id=a", content=content, headers=headers)

    assert status == answer.status_code
    assert await is_unchanged(jobs)


async def test_an_unknown_action_names_the_known_ones(jobs: Dibs) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answer = await send(browser, "explode", {})

    assert 404 == answer.status_code
    assert "known actions: enqueue" in answer.json()["error"]["message"]


async def test_all_queues_are_paused_and_resumed(jobs: Dibs) -> None:
    await jobs.queue("other").pause()
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        paused = (await send(browser, "pause_all", {})).json()
        states = {info.name: info.settings.paused for info in await jobs.storage.queues()}
        resumed = (await send(browser, "resume_all", {})).json()

    assert {"answer": "paused", "queues": len(states) - 1} == paused
    assert {True} == set(states.values())
    assert {"answer": "resumed", "queues": len(states)} == resumed
    assert not any(info.settings.paused for info in await jobs.storage.queues())


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("allow", ["read", may("read"), may("none")])
async def test_nobody_writes_without_permission(jobs: Dibs, action: str, allow: Any) -> None:
    async with browse(dibs_web(jobs, allow=allow)) as browser:
        answer = await send(browser, action, {"queue": "q", "id": "a"})

    assert (403, "Forbidden") == (answer.status_code, answer.json()["error"]["type"])
    assert await is_unchanged(jobs)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_site_cannot_write(jobs: Dibs, action: str, headers: dict[str, str]) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        params = {"queue": "q", "id": "a"}
        answer = await browser.client.post(f"/api/{action}", params=params, json={}, headers=headers)

    assert 403 == answer.status_code
    assert await is_unchanged(jobs)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_form_of_a_browser_is_no_json(jobs: Dibs, kind: str) -> None:
    """Browsers send these types to other sites without a question."""
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        address = "/api/cancel?queue=q&id=a"
        headers = {"Content-Type": kind}
        from_program = await browser.client.post(address, content=b"{}", headers=headers)
        from_page = await browser.client.post(address, content=b"{}", headers=headers | OWN)

    assert (403, 415) == (from_program.status_code, from_page.status_code)
    assert await is_unchanged(jobs)


async def test_a_script_of_the_same_host_writes(jobs: Dibs) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answer = await browser.client.post("/api/cancel?queue=q&id=a", json={}, headers=OWN)

    assert {"answer": "cancelled"} == answer.json()


async def test_forms_still_need_an_origin(jobs: Dibs) -> None:
    """The exception for programs holds below /api/ only."""
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answer = await browser.client.post("/do/cancel?queue=q&id=a", json={})

    assert 403 == answer.status_code
    assert await is_unchanged(jobs)


async def test_a_program_writes_with_the_token_of_dibs_web(jobs: Dibs) -> None:
    gate = TokenGate(dibs_web(jobs, allow=may("write")), "t" * 24)
    async with browse(gate) as program:
        refused = await program.client.post("/api/cancel?queue=q&id=a", json={})
        unchanged = await is_unchanged(jobs)
        headers = {"Authorization": "Bearer " + "t" * 24}
        done = await program.client.post("/api/cancel?queue=q&id=a", json={}, headers=headers)

    assert (401, True) == (refused.status_code, unchanged)
    assert {"answer": "cancelled"} == done.json()


async def test_a_write_is_logged_without_values(jobs: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs.web")
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        await send(browser, "amend", {"queue": "q", "id": "a"}, data="swordfish")

    assert "amend of job 'a' in the queue 'q': amended" in caplog.text
    assert "swordfish" not in caplog.text


async def test_the_page_after_a_write_is_read_again(jobs: Dibs) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        before = (await browser.get("/api/queue", name="q")).json()["counts"]["waiting"]
        await send(browser, "enqueue", {"queue": "q"}, data=2, id="b")
        after = (await browser.get("/api/queue", name="q")).json()["counts"]["waiting"]

    assert (1, 2) == (before, after)
