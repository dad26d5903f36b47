"""The writes of the dashboard: each changes the storage, and goes to the page that shows the result."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Mapping
from urllib.parse import parse_qsl, quote

import msgspec
import pytest

from dibs import Dibs, Queue
from dibs.client.calls.run_steps import encode_memo
from dibs.client.calls.signals import StoredWait
from dibs.model.requests import HandOff, Release, Settlement
from dibs.web import bulk, dibs_web
from dibs.web.writes import ACTIONS
from tests.web import shop
from tests.web.conftest import HOST, Browser, browse, may
from tests.web.jobs import claim, fail, slot_of, storage_of

HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


def fields_of(page: str) -> dict[str, str]:
    """Return the hidden fields of the form of the next step."""
    return dict(HIDDEN.findall(page.partition("do/matching")[2]))


async def finish(writer: Browser, params: Mapping[str, str], page: str) -> tuple[str, int]:
    """Submit the form of each next step, as the script does. Return the last page and the number of steps."""
    steps = 0
    while 'class="act steps"' in page:
        steps += 1
        page = (await writer.post("matching", params, fields_of(page))).text
    return page, steps


async def settings_of(queue: Queue) -> object:
    infos = await (await storage_of(queue)).queues()
    return next(info.settings for info in infos if info.name == queue.name)


async def test_a_queue_is_paused_and_resumed(writer: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a")

    answer = await writer.post("pause", {"queue": any_queue.name})

    assert (303, f"/queue?name={any_queue.name}&did=pause") == (
        answer.status_code,
        answer.headers["location"],
    )
    assert [] == await claim(any_queue)
    assert "The queue is paused" in (await writer.client.get(answer.headers["location"])).text
    await writer.post("resume", {"queue": any_queue.name})
    assert 1 == len(await claim(any_queue))


@pytest.mark.parametrize(
    ("origin", "page"), [("overview", "/?did=pause"), ("periodic", "/periodic?did=pause")]
)
async def test_a_write_returns_to_the_page_with_its_button(
    writer: Browser, any_queue: Queue, origin: str, page: str
) -> None:
    answer = await writer.post("pause", {"queue": any_queue.name}, {"from": origin})

    assert page == answer.headers["location"]


async def test_a_write_never_returns_to_an_address_of_the_form(writer: Browser, any_queue: Queue) -> None:
    answer = await writer.post("pause", {"queue": any_queue.name}, {"from": "https://evil.example"})

    assert f"/queue?name={any_queue.name}&did=pause" == answer.headers["location"]


async def test_settings_are_stored(writer: Browser, any_queue: Queue) -> None:
    await writer.post("configure", {"queue": any_queue.name}, {"max_active": "3", "log_level": "all"})
    first = await settings_of(any_queue)
    await writer.post("configure", {"queue": any_queue.name}, {"max_active": "", "log_level": "runs"})
    second = await settings_of(any_queue)

    assert (3, "all") == (first.max_active, first.log_level)  # type: ignore[attr-defined]
    assert (None, "runs") == (second.max_active, second.log_level)  # type: ignore[attr-defined]


async def test_turns_and_shares_of_keys_are_stored(writer: Browser, any_queue: Queue) -> None:
    await writer.post(
        "configure", {"queue": any_queue.name}, {"fair": "yes", "shares": "a=b=3\r\nold = 0\r\n"}
    )
    first = await settings_of(any_queue)
    await writer.post("configure", {"queue": any_queue.name}, {"fair": "no", "shares": "old=none"})
    second = await settings_of(any_queue)

    assert (True, {"a=b": 3, "old": 0}) == (first.fair, first.shares)  # type: ignore[attr-defined]
    assert (False, {"a=b": 3}) == (second.fair, second.shares)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_active": "many", "log_level": "all"},
        {"max_active": "1", "log_level": "loud"},
        {"shares": "acme"},
        {"shares": "acme=many"},
        {"shares": "=1"},
    ],
)
async def test_a_bad_setting_is_refused(writer: Browser, any_queue: Queue, fields: dict[str, str]) -> None:
    answer = await writer.post("configure", {"queue": any_queue.name}, fields)

    assert 400 == answer.status_code
    assert "This was not done" in answer.text


async def test_a_waiting_job_is_cancelled(writer: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a")

    answer = await writer.post("cancel", {"queue": any_queue.name, "id": "a"})
    slot = await slot_of(any_queue, "a")

    assert answer.headers["location"].endswith("did=cancelled")
    assert slot.current is None
    assert slot.outcome is not None
    assert "cancelled" == slot.outcome.kind


async def test_a_run_is_asked_to_stop_and_its_successor_is_dropped(writer: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a")
    await claim(any_queue)
    await any_queue.enqueue({}, id="a")

    answer = await writer.post("cancel_running", {"queue": any_queue.name, "id": "a"})
    slot = await slot_of(any_queue, "a")

    assert answer.headers["location"].endswith("did=requested")
    assert slot.current is not None
    assert slot.current.run is not None
    assert slot.current.run.cancel_requested
    assert slot.successor is None


async def test_a_handed_off_run_ends_at_once(writer: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a")
    [(_, fence)] = await claim(any_queue)
    storage = await storage_of(any_queue)
    await storage.settle(any_queue.name, [Settlement(id="a", fence=fence, action=HandOff())])

    answer = await writer.post("cancel_running", {"queue": any_queue.name, "id": "a"})

    assert answer.headers["location"].endswith("did=cancelled")
    assert (await slot_of(any_queue, "a")).current is None


async def test_a_failed_job_is_retried_once(writer: Browser, any_queue: Queue) -> None:
    await fail(any_queue, "a")

    first = await writer.post("retry", {"queue": any_queue.name, "id": "a"})
    second = await writer.post("retry", {"queue": any_queue.name, "id": "a"})

    assert first.headers["location"].endswith("did=retried")
    assert second.headers["location"].endswith("did=live")
    assert [("a")] == [id for id, _ in await claim(any_queue)]


async def test_a_scheduled_job_runs_now(writer: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="a", delay=3600)

    answer = await writer.post("run_now", {"queue": any_queue.name, "id": "a"})

    assert answer.headers["location"].endswith("did=due")
    assert ["a"] == [id for id, _ in await claim(any_queue)]


async def test_a_waiting_job_is_changed(writer: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({"n": 1}, id="a")

    fields = {"priority": "7", "delay": "2h", "data": '{"n": 2}'}
    answer = await writer.post("amend", {"queue": any_queue.name, "id": "a"}, fields)
    status = await any_queue.get("a")

    assert answer.headers["location"].endswith("did=amended")
    assert status is not None
    assert (7, {"n": 2}) == (status.priority, status.data)
    assert [] == await claim(any_queue)


@pytest.mark.parametrize(
    "fields", [{}, {"priority": "high"}, {"priority": "1001"}, {"delay": "soon"}, {"data": "{"}]
)
async def test_a_bad_change_is_refused(writer: Browser, any_queue: Queue, fields: dict[str, str]) -> None:
    await any_queue.enqueue({"n": 1}, id="a")
    before = await slot_of(any_queue, "a")

    answer = await writer.post("amend", {"queue": any_queue.name, "id": "a"}, fields)

    assert 400 == answer.status_code
    assert before == await slot_of(any_queue, "a")


async def test_a_parked_job_shows_what_it_waits_for_and_gets_the_signal(
    writer: Browser, any_queue: Queue
) -> None:
    await any_queue.enqueue({"n": 1}, id="a")
    [(_, fence)] = await claim(any_queue)
    storage = await storage_of(any_queue)
    wait = StoredWait("<approved>", until=1_800_000_000_000)
    memo = encode_memo({"dibs.wait.<approved>.1.until": msgspec.msgpack.encode(wait)})
    await storage.report(any_queue.name, "a", fence, memo=memo)
    park = Settlement(id="a", fence=fence, action=Release(run_at=wait.until, parked=True))
    await storage.settle(any_queue.name, [park])

    page = await writer.text("/job", queue=any_queue.name, id="a")
    target = {"queue": any_queue.name, "id": "a"}
    bad = await writer.post("signal", target, {"name": "<approved>", "value": "{"})
    sent = await writer.post("signal", target, {"name": "<approved>", "value": '{"by": "ada"}'})

    assert "<dt>waits for</dt><dd>&lt;approved&gt;</dd>" in page
    assert "<dt>until</dt>" in page
    assert 'class="state s-parked">parked<' in page
    assert "Stored steps" not in page
    assert 400 == bad.status_code
    assert sent.headers["location"].endswith("did=delivered")
    lease = (await storage.grant([any_queue.name], 60_000, "h")).lease
    [job] = (await storage.claim(any_queue.name, lease, 1)).jobs
    assert [b'{"json":{"by":"ada"}}'] == [raw.replace(b" ", b"") for raw in job.data.attributes.values()]


@pytest.mark.parametrize("id", ["a", "line\nbreak\r\n", "../x?y=1&z#", "\u202eevil", "<b>", "%2F"])
async def test_an_id_is_forgotten(writer: Browser, any_queue: Queue, id: str) -> None:
    await any_queue.enqueue({}, id=id)

    page = await writer.text("/job", queue=any_queue.name, id=id)
    action = re.search(r'action="/do/forget\?([^"]+)"', page)
    assert action is not None
    address = f"/do/forget?{action[1].replace('&amp;', '&')}"
    await writer.client.post(address, headers={"Origin": HOST})

    assert await any_queue.get(id) is None


async def test_a_job_without_a_task_is_enqueued_as_json(writer: Browser, any_queue: Queue) -> None:
    fields = {"data": '{"to": "ada"}', "id": "a", "delay": "1h", "priority": "5"}

    answer = await writer.post("enqueue", {"queue": any_queue.name}, fields)
    status = await any_queue.get("a")

    assert f"/job?queue={any_queue.name}&id=a&did=queued" == answer.headers["location"]
    assert status is not None
    assert ({"to": "ada"}, 5) == (status.data, status.priority)
    assert [] == await claim(any_queue)


@pytest.fixture
async def seller() -> AsyncIterator[Browser]:
    """A browser that may write, on the application of tests/web/shop.py."""
    async with shop.app.using("memory:") as app, browse(dibs_web(app, allow=may("write"))) as browser:
        yield browser


async def test_the_form_of_a_task_has_its_parameters(seller: Browser) -> None:
    page = await seller.text("/enqueue", queue="thumbs")

    assert "Make a small picture." in page
    for name, hint in (
        ("path", "str"),
        ("width", "int, as JSON; empty is 200"),
        ("tags", "list[str] | None, as JSON"),
    ):
        assert f"<code>{name}</code>" in page
        assert hint in page


async def test_a_call_is_enqueued_from_the_fields_of_the_form(seller: Browser) -> None:
    fields = {"arg-path": "a\r\nb", "arg-width": "7", "arg-tags": '["x"]', "id": "a"}

    await seller.post("enqueue", {"queue": "thumbs"}, fields)
    status = await shop.thumbnail.queue.get("a")

    assert status is not None
    assert {"path": "a\nb", "width": 7, "tags": ["x"]} == status.kwargs


async def test_a_field_that_is_left_empty_has_its_default(seller: Browser) -> None:
    await seller.post("enqueue", {"queue": "thumbs"}, {"arg-path": "", "arg-width": "", "id": "a"})
    status = await shop.thumbnail.queue.get("a")

    assert status is not None
    assert {"path": ""} == status.kwargs


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"arg-width": '"wide"'}, "width"),
        ({"arg-width": "wide"}, "width is not JSON"),
        ({"arg-tags": "[1]"}, "tags"),
        ({"id": "x" * 513}, "id"),
        ({"priority": "high"}, "priority"),
        ({"delay": "later"}, "delay"),
    ],
)
async def test_a_refused_form_is_shown_again_with_its_values(
    seller: Browser, fields: dict[str, str], reason: str
) -> None:
    answer = await seller.post("enqueue", {"queue": "thumbs"}, {"arg-path": "kept.png", **fields})

    assert 422 == answer.status_code
    assert reason in answer.text
    assert "\nkept.png</textarea>" in answer.text
    assert 0 == (await shop.thumbnail.queue.counts()).waiting


async def test_a_task_with_any_number_of_arguments_takes_json(seller: Browser) -> None:
    await seller.post("enqueue", {"queue": "any-call"}, {"data": '{"args": [1, 2], "kwargs": {}}', "id": "a"})
    status = await shop.any_call.queue.get("a")

    assert status is not None
    assert (1, 2) == status.args


# -- retries of many -----------------------------------------------------------------------------------------


async def test_selected_failures_are_retried_with_an_answer_for_each(
    writer: Browser, any_queue: Queue
) -> None:
    ids = ["a/b", "line\nbreak", "gone"]
    for id in ids:
        await fail(any_queue, id)
    await any_queue.forget("gone")
    boxes = [f"{quote(any_queue.name, safe='')}/{quote(id, safe='')}" for id in ids]

    answer = await writer.post("retry_selected", {}, {"job": boxes})

    assert "<strong>2</strong> enqueued again" in answer.text
    assert "not found" in answer.text
    assert 2 == (await any_queue.counts()).waiting


async def test_all_failures_of_a_group_are_counted_and_then_retried(
    writer: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps read two jobs each, so that several are needed. The browser repeats the form."""
    monkeypatch.setattr(bulk, "PAGE_SIZE", 2)
    monkeypatch.setattr(bulk, "STEP_JOBS", 2)
    for number in range(5):
        await fail(any_queue, f"job-{number}", "shop.Broken", f"number {number}")
    await fail(any_queue, "other", "shop.Other", "other")
    page = await writer.text("/failures", queue=any_queue.name)
    group = re.search(r"group=(\w+)\">shop.Broken", page)
    assert group is not None
    params = {"queue": any_queue.name, "group": group[1]}

    counted = await writer.post("matching", params)
    assert 5 == (await any_queue.counts()).failed - 1
    done, steps = await finish(writer, params, counted.text)
    counts = await any_queue.counts()

    assert '<p class="big">5 jobs</p>' in counted.text
    assert "<strong>5</strong> enqueued again. Done." in done
    assert 2 <= steps <= 4
    assert (5, 1) == (counts.waiting, counts.failed)


async def test_a_bulk_retry_spreads_the_starts_over_a_time(
    writer: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of two jobs is a share of the hour; the time travels with the form."""
    monkeypatch.setattr(bulk, "PAGE_SIZE", 2)
    monkeypatch.setattr(bulk, "STEP_JOBS", 2)
    for number in range(6):
        await fail(any_queue, f"job-{number}")
    params = {"queue": any_queue.name}
    answer = await writer.post("matching", params)
    fields = fields_of(answer.text)
    refused = await writer.post("matching", params, {**fields, "over": "soon"})
    assert (400, 6) == (refused.status_code, (await any_queue.counts()).failed)

    answer = await writer.post("matching", params, {**fields, "over": "1h"})
    await finish(writer, params, answer.text)

    starts = [
        (status.run_at - status.enqueued_at).total_seconds()
        async for status in any_queue.list("waiting")
        if status.run_at is not None and status.enqueued_at is not None
    ]
    assert [0, 0, 1200, 1200, 2400, 2400] == sorted(starts)


async def test_jobs_that_failed_after_the_count_are_left(writer: Browser, any_queue: Queue) -> None:
    await fail(any_queue, "early")
    counted = await writer.post("matching", {"queue": any_queue.name})
    fields = fields_of(counted.text)
    fields["before"] = str(int(fields["before"]) - 3_600_000)

    answer = await writer.post("matching", {"queue": any_queue.name}, fields)

    assert "<strong>0</strong> enqueued again. Done." in answer.text
    assert 1 == (await any_queue.counts()).failed


async def test_all_waiting_jobs_that_match_a_filter_are_cancelled(
    writer: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are enqueued after the count stay, also if they match."""
    monkeypatch.setattr(bulk, "PAGE_SIZE", 2)
    monkeypatch.setattr(bulk, "STEP_JOBS", 2)
    for number in range(5):
        await any_queue.enqueue({"customer": "acme"}, id=f"acme-{number}", delay=60 * (number % 2))
    await any_queue.enqueue({"customer": "other"}, id="other")
    page = await writer.text("/queue", name=any_queue.name, state="waiting", part="ACME")
    address = re.search(r'action="/(do/matching[^"]+act=cancel[^"]*)"', page)
    assert address is not None
    params = dict(parse_qsl(html.unescape(address[1]).partition("?")[2]))
    counted = await writer.post("matching", params)
    early = {**fields_of(counted.text), "before": "1"}
    left, _ = await finish(writer, params, (await writer.post("matching", params, early)).text)
    assert "<strong>0</strong> cancelled. Done." in left

    done, _ = await finish(writer, params, counted.text)
    counts = await any_queue.counts()

    assert '<p class="big">5 jobs</p>' in counted.text
    assert "<strong>5</strong> cancelled. Done." in done
    assert (1, 5) == (counts.waiting, counts.cancelled)


@pytest.mark.parametrize(
    ("state", "name", "after"),
    [
        ("scheduled", "run_now", (3, 0, 0)),
        ("scheduled", "forget", (0, 0, 0)),
        ("active", "cancel_running", (0, 0, 3)),
    ],
)
async def test_other_actions_take_all_jobs_of_a_list(
    writer: Browser, any_queue: Queue, state: str, name: str, after: tuple[int, int, int]
) -> None:
    for number in range(3):
        await any_queue.enqueue({}, id=f"job-{number}", delay=60 if state == "scheduled" else 0)
    if state == "active":
        await claim(any_queue, 3)
    params = {"queue": any_queue.name, "state": state, "act": name}
    counted = await writer.post("matching", params)
    done, _ = await finish(writer, params, counted.text)
    counts = await any_queue.counts()

    assert '<p class="big">3 jobs</p>' in counted.text
    assert f"<strong>3</strong> {ACTIONS[name].done}. Done." in done
    assert after == (counts.waiting - counts.scheduled, counts.scheduled, counts.active)


@pytest.mark.parametrize(("state", "name"), [("waiting", "retry"), ("gone", "cancel"), ("failed", "explode")])
async def test_an_action_that_a_list_lacks_is_refused(writer: Browser, state: str, name: str) -> None:
    answer = await writer.post("matching", {"queue": "q", "state": state, "act": name})

    assert 400 == answer.status_code
    assert "use one of" in answer.text


async def test_an_unknown_action_is_not_found(writer: Browser) -> None:
    assert 404 == (await writer.post("explode", {"queue": "q"})).status_code
    assert 405 == (await writer.get("/do/pause", queue="q")).status_code


async def test_a_write_shows_at_once_on_the_next_page(
    writer: Browser, any_queue: Queue, any_app: Dibs
) -> None:
    """The pages of a process share readings for half a second; a write ends that."""
    await any_queue.enqueue({}, id="a")
    assert "s-waiting" in await writer.text("/job", queue=any_queue.name, id="a")

    await writer.post("cancel", {"queue": any_queue.name, "id": "a"})

    assert "<h2>Outcome" in await writer.text("/job", queue=any_queue.name, id="a")
