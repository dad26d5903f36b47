"""The safety of the dashboard: access, Origin, headers, and values that a hook hides."""

from __future__ import annotations

import logging
from typing import Any

import httpx2
import pytest
from starlette.routing import Route

from dibs import ConfigurationError, Dibs
from dibs.web import dibs_web
from dibs.web.pages import Pages
from dibs.web.safety import HEADERS, Guard, is_same_origin
from dibs.web.writes import WRITES
from tests.web.conftest import HOST, browse, may

ACTIONS = (
    *("pause", "resume", "pause_all", "resume_all"),
    *("configure", "cancel", "cancel_running", "retry", "run_now", "forget", "amend", "signal"),
    *("pause_schedule", "resume_schedule", "remove_schedule"),
    *("enqueue", "retry_selected", "matching", "selected", "cancel_flow", "retry_flow"),
)


@pytest.fixture
async def jobs() -> Any:
    async with Dibs("memory:") as app:
        await app.queue("q").enqueue({"secret": "swordfish"}, id="a", attributes={"note": "swordfish"})
        yield app


async def is_unchanged(app: Dibs) -> bool:
    counts = await app.queue("q").counts()
    status = await app.queue("q").get("a")
    return counts.waiting == 1 and status is not None and status.state == "waiting"


def test_the_actions_of_these_tests_are_all_writes() -> None:
    """A new write is tested without permission, and from another site."""
    guard = dibs_web("memory:", allow="read")._asgi
    assert isinstance(guard, Guard)
    routes = [route for route in guard.app.routes if isinstance(route, Route)]  # type: ignore[attr-defined]
    writing = {route.path for route in routes if route.methods and route.methods - {"GET", "HEAD"}}
    # tests/web/api/test_writes.py tests those below /api/.
    writing.remove("/api/{name}")
    special = {path.removeprefix("/do/") for path in writing if "{" not in path}

    assert {"/do/{action}"} == {path for path in writing if "{" in path}
    assert all(path.startswith("/do/") for path in writing)
    assert special | set(WRITES) == set(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS)
async def test_no_link_writes(jobs: Dibs, action: str) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answer = await browser.get(f"/do/{action}", queue="q", id="a")

    assert answer.status_code in (404, 405)
    assert await is_unchanged(jobs)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("allow", ["read", may("read"), may("none")])
async def test_nobody_writes_without_permission(jobs: Dibs, action: str, allow: Any) -> None:
    async with browse(dibs_web(jobs, allow=allow)) as browser:
        answer = await browser.post(action, {"queue": "q", "id": "a"}, {"data": "{}"})

    assert 403 == answer.status_code
    assert await is_unchanged(jobs)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"{HOST}:8080"},
        {"Origin": f"{HOST}.evil.example"},
        {"Origin": HOST, "Sec-Fetch-Site": "cross-site"},
        {"Origin": HOST, "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://[bad"},
    ],
)
async def test_a_write_from_another_site_is_refused(jobs: Dibs, action: str, headers: dict[str, str]) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answer = await browser.post(action, {"queue": "q", "id": "a"}, {"data": "{}"}, headers)

    assert 403 == answer.status_code
    assert await is_unchanged(jobs)


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        ("localhost:8321", (), 200),
        ("LOCALHOST", (), 200),
        ("dibs.localhost", (), 200),
        ("127.0.0.1", (), 200),
        ("[::1]:8321", (), 200),
        ("192.168.1.7:80", (), 200),
        ("evil.example", (), 421),
        ("localhost.evil.example", (), 421),
        ("127.0.0.1.evil.example", (), 421),
        ("[bad", (), 421),
        ("", (), 421),
        ("jobs.example.org", (), 421),
        ("jobs.example.org:8321", ("jobs.example.org",), 200),
        ("jobs.example.org", ("Jobs.Example.org",), 200),
        ("evil.example", ("jobs.example.org",), 421),
        ("a.example.org", (".example.org",), 200),
        ("example.org", (".example.org",), 200),
        ("evilexample.org", (".example.org",), 421),
        ("any.example", ("*",), 200),
    ],
)
async def test_a_host_of_another_name_is_refused(
    jobs: Dibs, host: str, allowed: tuple[str, ...], status: int
) -> None:
    async with browse(dibs_web(jobs, allow=may("write"), allowed_hosts=allowed)) as browser:
        for path in ("/", "/api/overview", "/live/nothing", "/static/dibs.js"):
            answer = await browser.client.get(path, headers={"Host": host})

            assert (404 if "nothing" in path and status == 200 else status) == answer.status_code, path
            assert (status == 200) or "--allowed-host" in answer.text


@pytest.mark.parametrize("names", ["jobs.example.org", [None], [b"a"]])
def test_allowed_hosts_that_are_no_names_are_refused(names: Any) -> None:
    with pytest.raises(ConfigurationError, match="allowed_hosts is"):
        dibs_web("memory:", allowed_hosts=names, allow="read")


def test_nobody_publishes_jobs_by_mistake() -> None:
    with pytest.raises(ConfigurationError, match="allow is missing"):
        dibs_web("memory:")
    with pytest.raises(ConfigurationError, match="allow is 'admin'; pass a function"):
        dibs_web("memory:", allow="admin")  # type: ignore[arg-type]


async def test_a_form_that_is_too_large_is_refused(jobs: Dibs) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answer = await browser.post("enqueue", {"queue": "q"}, {"data": "x" * 5_000_000})

    assert 403 == answer.status_code
    assert "bytes" in answer.text
    assert await is_unchanged(jobs)


async def test_a_viewer_without_permission_sees_nothing(jobs: Dibs) -> None:
    async with browse(dibs_web(jobs, allow=may("none"))) as browser:
        for path in ("/", "/job?queue=q&id=a", "/live/overview", "/static/dibs.css", "/nothing"):
            answer = await browser.get(path)

            assert (403, "You may not see this dashboard.\n") == (answer.status_code, answer.text)


async def test_a_reader_sees_no_button(jobs: Dibs) -> None:
    async with browse(dibs_web(jobs, allow="read")) as browser:
        for path in ("/", "/queue?name=q", "/job?queue=q&id=a", "/failures", "/enqueue?queue=q"):
            assert "<form method=" not in (page := await browser.text(path))
            assert 'method="post"' not in page


async def test_the_access_may_come_from_an_async_function(jobs: Dibs) -> None:
    async def allow(request: Any) -> Any:
        return "read" if request.headers.get("x-user") == "ada" else "none"

    async with browse(dibs_web(jobs, allow=allow)) as browser:
        assert 403 == (await browser.get("/")).status_code
        assert 200 == (await browser.client.get("/", headers={"X-User": "ada"})).status_code


@pytest.mark.parametrize("answer", [True, False, None, "admin", 1])
async def test_an_access_that_is_none_of_the_three_is_refused(
    jobs: Dibs, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with browse(dibs_web(jobs, allow=lambda _: answer)) as browser:
        assert 403 == (await browser.get("/")).status_code

    assert f"allow= returned {answer!r}" in caplog.text


async def test_a_failure_of_allow_is_refused_and_logged(jobs: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    def allow(_: Any) -> Any:
        raise RuntimeError("no session")

    async with browse(dibs_web(jobs, allow=allow)) as browser:
        assert 403 == (await browser.get("/")).status_code

    assert "no session" in caplog.text


async def test_each_answer_has_a_strict_policy(jobs: Dibs) -> None:
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        answers = [
            await browser.get("/"),
            await browser.get("/nothing"),
            await browser.get("/static/dibs.js"),
            await browser.post("pause", {"queue": "q"}, headers={}),
        ]

    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "DENY" == answer.headers["x-frame-options"]
    assert "no-store" == answers[0].headers["cache-control"]


@pytest.mark.parametrize("path", ["/workers", "/api/workers"])
async def test_an_unexpected_error_shows_no_text_and_keeps_the_policy(
    jobs: Dibs, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("swordfish")

    monkeypatch.setattr(Pages, "key", fail)
    transport = httpx2.ASGITransport(app=dibs_web(jobs, allow="read"), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
        answer = await client.get(path)

    assert 500 == answer.status_code
    assert "swordfish" not in answer.text
    assert HEADERS == {name: answer.headers.get(name) for name in HEADERS}


def test_origins_are_compared_by_host_and_port() -> None:
    assert is_same_origin({"origin": "https://a.example:8", "host": "a.example:8"})
    assert is_same_origin({"origin": "http://[::1]:8321", "host": "[::1]:8321"})
    assert not is_same_origin({"origin": "https://a.example", "host": "a.example:8"})
    assert not is_same_origin({"origin": "", "host": ""})
    assert not is_same_origin({"host": "a.example"})


@pytest.mark.parametrize("action", ["retry_selected", "matching"])
async def test_bulk_retries_are_logged_without_values(
    jobs: Dibs, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dibs.web")
    fields = {"job": "q/a", "confirmed": "1", "before": "0"}
    async with browse(dibs_web(jobs, allow=may("write"))) as browser:
        await browser.post(action, {"queue": "q"}, fields)

    assert f"{action} of " in caplog.text
    assert "0 enqueued again" in caplog.text
    assert "swordfish" not in caplog.text


# -- values --------------------------------------------------------------------------------------------------


async def test_a_hook_hides_values_everywhere(jobs: Dibs) -> None:
    def redact(queue: str, part: str, value: Any) -> Any:
        return f"hidden {part} of {queue}"

    async with browse(dibs_web(jobs, allow=may("write"), redact=redact)) as browser:
        page = await browser.text("/job", queue="q", id="a")

    assert "swordfish" not in page
    assert "hidden data of q" in page
    assert "hidden attributes of q" in page


async def test_a_hook_that_fails_shows_no_value(jobs: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    def redact(queue: str, part: str, value: Any) -> Any:
        raise RuntimeError("hook")

    async with browse(dibs_web(jobs, redact=redact, allow="read")) as browser:
        page = await browser.text("/job", queue="q", id="a")

    assert "swordfish" not in page
    assert "the redaction hook failed" in page
    assert logging.ERROR == max(record.levelno for record in caplog.records)


async def test_no_page_shows_the_password_of_the_url(tmp_path: Any) -> None:
    app = Dibs("redis://ada:swordfish@127.0.0.1:1/0?socket_timeout=1", call_timeout=1)
    async with browse(dibs_web(app, allow="read")) as browser:
        for path in ("/", "/place", "/failures"):
            answer = await browser.get(path)

            assert 503 == answer.status_code
            assert "swordfish" not in answer.text
            assert "ada" not in answer.text
    assert "swordfish" not in repr(dibs_web(app, allow="read"))
    await app.close()


@pytest.mark.parametrize("bad", [None, 7, object()])
def test_another_object_than_an_app_or_a_url_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="app_or_url"):
        dibs_web(bad, allow="read")


def test_a_redaction_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="redact"):
        dibs_web("memory:", redact="write", allow="read")  # type: ignore[arg-type]
