"""Values of jobs with a hook that hides them, on each page, its JSON and in the log; and hostile texts."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from dibs import Dibs, Queue
from dibs.client.calls.run_steps import encode_memo
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, RetryLater, SettingsPatch, Settlement
from dibs.web import dibs_web
from dibs.web.pages import Pages
from dibs.web.reading.source import Source
from dibs.web.safety import HEADERS
from dibs.web.server import TokenGate
from dibs.web.writes import WRITES
from tests.web.conftest import HOST, HOSTILE_PARAMS, Browser, browse, may
from tests.web.jobs import claim, end, storage_of

SECRET: Final = "swordfish"
ERROR: Final = Error(
    type="shop.Broken",
    message=f"the {SECRET} of the message",
    traceback=f"raise Broken({SECRET})",
    cause=Error(type="shop.Cause", message=f"a {SECRET} below", traceback=f"raise Cause({SECRET})"),
)
HOSTILE: Final = "<script>alert(1)</script>\u202e\"'&"
PAGES: Final = tuple(Pages(Source(Dibs("memory:"))).kinds)


@pytest.fixture
async def queue(any_queue: Queue) -> Queue:
    """A queue with the secret in each value of a job."""
    storage = await storage_of(any_queue)
    await storage.configure(any_queue.name, SettingsPatch(log_level="all", log_results=1000))
    await end(any_queue, "done", Complete(result=f'"{SECRET}"'.encode()), {"of": SECRET})
    await end(any_queue, "failed", Fail(error=ERROR), {"of": SECRET})
    await any_queue.enqueue({"of": SECRET}, id="again")
    [(id, fence)] = await claim(any_queue)
    retry = RetryLater(error=ERROR, delay=600_000)
    await storage.settle(any_queue.name, [Settlement(id=id, fence=fence, action=retry)])
    note = {"note": SECRET}
    await any_queue.enqueue({"of": SECRET}, id="runs", attributes=note)
    [(id, fence)] = await claim(any_queue)
    await storage.report(any_queue.name, id, fence, progress=f'{{"at":"{SECRET}"}}'.encode())
    if storage.capabilities.output:
        await storage.report(any_queue.name, id, fence, output=[f'v"{SECRET}"'.encode()])
    await storage.report(any_queue.name, id, fence, memo=encode_memo({"step": f'"{SECRET}"'.encode()}))
    await any_queue.enqueue({"of": SECRET}, id="runs", attributes=note)
    await any_queue.enqueue({"of": SECRET}, id="waits", attributes=note)
    return any_queue


def addresses(name: str) -> list[str]:
    ids = ("done", "failed", "again", "runs", "waits")
    states = ("waiting", "active", "blocked", "completed", "failed")
    return [
        *(f"{page}?queue={name}&name={name}&id=waits&text=waits" for page in PAGES if page != "search"),
        *(f"job?queue={name}&id={id}" for id in ids),
        *(f"queue?name={name}&state={state}" for state in states),
        *(f"queue?name={name}&state={state}&attr=note={SECRET}" for state in states),
        f"failures?queue={name}",
    ]


@pytest.fixture
async def hiding(any_app: Dibs) -> AsyncIterator[Browser]:
    def redact(_queue: str, _part: str, _value: Any) -> str:
        return "hidden"

    async with browse(dibs_web(any_app, allow=may("write"), redact=redact)) as browser:
        yield browser


async def test_no_page_shows_a_value(
    hiding: Browser, any_app: Dibs, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dibs.web")
    for address in addresses(queue.name):
        for path in (f"/{address}", f"/api/{address}"):
            answer = await hiding.get("/" + path.lstrip("/").removeprefix("overview"))
            # The page repeats the text of the filter that the reader has typed.
            text = answer.text.replace(f"note={SECRET}", "").replace(f'"value":"{SECRET}"', "")
            text = text.replace(f"note%3D{SECRET}", "")

            assert answer.status_code in (200, 303), path
            assert SECRET not in text, path
    for action, fields in (
        ("matching", {}),
        ("selected", {"act": "forget", "job": "failed"}),
        ("retry_selected", {"job": f"{queue.name}/failed"}),
    ):
        answer = await hiding.post(action, {"queue": queue.name}, fields)

        assert 200 == answer.status_code, action
        assert SECRET not in answer.text
    assert SECRET not in caplog.text


async def test_without_a_hook_the_values_are_there(any_app: Dibs, queue: Queue) -> None:
    """This shows that the test before, with a hook, looks at pages that have values."""
    async with browse(dibs_web(any_app, allow="read")) as reader:
        for id, count in (("done", 2), ("failed", 5), ("again", 5), ("runs", 6), ("waits", 2)):
            page = await reader.text("/job", queue=queue.name, id=id)

            assert count <= page.count(SECRET), id


async def test_the_groups_of_hidden_messages_confirm_no_guess(any_app: Dibs, any_queue: Queue) -> None:
    """Each address and each page has the keys of groups, which come from the messages as they are shown."""
    for number, secret in enumerate(("swordfish", "pike")):
        await end(
            any_queue, f"job-{number}", Fail(error=Error(type="shop.Broken", message=f"{secret} is wrong"))
        )
    keys: list[set[str]] = []
    for redact in (None, lambda _queue, _part, _value: "hidden"):
        async with browse(dibs_web(any_app, allow=may("write"), redact=redact)) as browser:
            page = await browser.text("/failures", queue=any_queue.name)
            keys.append(set(re.findall(r"group=(\w+)", page)))
            [key, *_] = sorted(keys[-1])
            counted = await browser.post("matching", {"queue": any_queue.name, "group": key})

            assert f"{3 - len(keys[-1])} job" in counted.text

    assert [2, 1] == [len(each) for each in keys]
    assert not keys[0] & keys[1]


# -- hostile texts and headers -------------------------------------------------------------------------------


async def test_hostile_texts_are_escaped_on_each_page(any_app: Dibs) -> None:
    queue = any_app.queue(f"q{HOSTILE}")
    error = Error(type=HOSTILE, message=HOSTILE, traceback=HOSTILE)
    await end(queue, HOSTILE, Fail(error=error), {HOSTILE: HOSTILE})
    await queue.enqueue({}, id=f"w{HOSTILE}", attributes={"note": HOSTILE}, key=HOSTILE[:20])
    async with browse(dibs_web(any_app, allow=may("write"))) as browser:
        for page in PAGES:
            params = {
                "queue": queue.name,
                "name": queue.name,
                "id": HOSTILE,
                "text": HOSTILE,
                "prefix": HOSTILE,
            }
            answer = await browser.get("/" if page == "overview" else f"/{page}", **params)

            assert answer.status_code in (200, 303, 400), page
            assert "<script>alert" not in answer.text, page
            # A field of a form has the text itself, which the next request repeats.
            assert "\u202e" not in re.sub(r'value="[^"]*"', "", answer.text), page


async def test_each_response_has_the_headers(any_app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, JSON, files, redirects, refusals, unknown addresses, and an error of the dashboard itself."""
    async with browse(dibs_web(any_app, allow=may("write"))) as browser:
        answers = {path: await browser.get(path) for path in _every_path()}
        for path, answer in answers.items():
            assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"], path
            assert "nosniff" == answer.headers["x-content-type-options"], path
            assert ("public" in answer.headers["cache-control"]) == path.startswith("/static/dibs"), path
    async with browse(TokenGate(dibs_web(any_app, allow="read"), "t" * 24)) as browser:
        for answer in (await browser.get("/"), await browser.get("/", token="t" * 24)):
            assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def _every_path() -> list[str]:
    pages = ["/" if page == "overview" else f"/{page}?queue=q&name=q&id=a&text=a" for page in PAGES]
    return [
        *pages,
        *(f"/api/{page}?queue=q&name=q&id=a&text=a" for page in PAGES),
        *("/api/nothing", "/live/nothing", "/report", "/do/pause", "/nothing", "/static/nothing"),
        *("/static/dibs.css", "/static/dibs.js", "/queue?name=" + "x" * 600),
    ]


#: Values of parameters as they stand in an address: no UTF-8, special characters, numbers that are too long.
BAD_VALUES: Final = (
    "%ff",
    "%ed%a0%80",
    "%00",
    "%",
    "%f0%9f%98%80",
    "%c2%b2",
    "9" * 5000,
    "-" + "9" * 5000,
    "self",
)


@pytest.mark.long
@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: value[:12])
async def test_no_address_is_an_error_of_the_server(any_app: Dibs, queue: Queue, value: str) -> None:
    names = list(HOSTILE_PARAMS)
    params = ["&".join(f"{name}={value}" for name in names[half::2]) for half in (0, 1)]
    cursors = f"queue={queue.name}&name={queue.name}&state=failed&id=failed&after={value}&group={value}"
    async with browse(dibs_web(any_app, allow=may("write"))) as browser:
        for page in PAGES:
            for path in ("" if page == "overview" else page, f"api/{page}", value):
                for query in (*params, cursors, f"{value}=1"):
                    answer = await browser.client.get(f"/{path}?{query}")

                    assert answer.status_code < 500, (path, query, answer.text)


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: value[:12])
async def test_no_form_is_an_error_of_the_server(any_app: Dibs, queue: Queue, value: str) -> None:
    names = (
        "id delay priority max_active per_key rate key_rate log_level act before read total after answer-x"
    )
    headers = {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}
    async with browse(dibs_web(any_app, allow=may("write"))) as browser:
        for action in (*WRITES, "selected", "retry_selected", "matching"):
            for name in names.split():
                body = f"{name}={value}&act=run_now&confirmed=1&job={value}&data=1"
                answer = await browser.client.post(
                    f"/do/{action}?queue={queue.name}&id=done", content=body, headers=headers
                )

                assert answer.status_code < 500, (action, name, answer.text)
