"""Actions on the jobs that a reader has selected in the list of a queue."""

from __future__ import annotations

import logging
import re
from urllib.parse import quote

import pytest

from dibs import Queue
from tests.web.conftest import Browser
from tests.web.jobs import claim, complete, fail, slot_of

#: An id that must be encoded in a form.
HARD = "a/b %2F\u202e\n"


async def press(browser: Browser, queue: Queue, act: str, *ids: str, **fields: str) -> str:
    """Press the button of an action with the boxes of some jobs checked, and return the answer."""
    jobs = [quote(id, safe="") for id in ids]
    answer = await browser.post("selected", {"queue": queue.name}, {"act": act, "job": jobs, **fields})

    assert 200 == answer.status_code, answer.text
    return answer.text


async def test_selected_jobs_are_cancelled(writer: Browser, any_queue: Queue) -> None:
    for id in ("a", "b", HARD):
        await any_queue.enqueue({}, id=id, delay=60)
    page = await press(writer, any_queue, "cancel", "a", HARD, "gone")

    counts = await any_queue.counts()
    assert (1, 2) == (counts.waiting, counts.cancelled)
    assert "<strong>2</strong> of 3 done." in page
    assert "no longer there" in page


async def test_selected_jobs_become_due(writer: Browser, any_queue: Queue) -> None:
    for id in ("a", "b", "c"):
        await any_queue.enqueue({}, id=id, delay=60)
    await press(writer, any_queue, "run_now", "a", "b")

    assert ["a", "b"] == sorted(id for id, _ in await claim(any_queue, 10))


async def test_selected_runs_are_asked_to_stop_after_a_question(
    writer: Browser,
    any_queue: Queue,
) -> None:
    await any_queue.enqueue({}, id="a")
    await claim(any_queue)
    asked = await press(writer, any_queue, "cancel_running", "a")
    before = await slot_of(any_queue, "a")
    await press(writer, any_queue, "cancel_running", "a", confirmed="1")
    after = await slot_of(any_queue, "a")

    assert "asked to stop these runs" in asked
    for slot, requested in ((before, False), (after, True)):
        assert slot.current is not None
        assert slot.current.run is not None
        assert requested == slot.current.run.cancel_requested


async def test_selected_jobs_are_forgotten_after_a_question(
    writer: Browser,
    any_queue: Queue,
) -> None:
    await complete(any_queue, "a")
    await complete(any_queue, HARD)
    asked = await press(writer, any_queue, "forget", "a", HARD)
    kept = (await any_queue.counts()).completed
    await press(writer, any_queue, "forget", "a", HARD, confirmed="1")

    assert 2 == len(re.findall('name="job"', asked))
    assert (2, 0) == (kept, (await any_queue.counts()).completed)


async def test_selected_failures_are_retried(writer: Browser, any_queue: Queue) -> None:
    await fail(any_queue, "a")
    await fail(any_queue, "b")
    await press(writer, any_queue, "retry", "a")

    counts = await any_queue.counts()
    assert (1, 1) == (counts.waiting, counts.failed)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"act": "explode", "job": "a"}, "use one of"), ({"act": "cancel"}, "no job is selected")],
)
async def test_a_wrong_selection_is_refused(
    writer: Browser,
    any_queue: Queue,
    fields: dict[str, str],
    reason: str,
) -> None:
    answer = await writer.post("selected", {"queue": any_queue.name}, fields)

    assert 400 == answer.status_code
    assert reason in answer.text


async def test_writes_are_logged_without_values(
    writer: Browser,
    any_queue: Queue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await any_queue.enqueue({"card": "4242"}, id="a", delay=60)
    with caplog.at_level(logging.INFO, "dibs.web"):
        await writer.post("cancel", {"queue": any_queue.name, "id": "a"})
        await press(writer, any_queue, "forget", "a", confirmed="1")

    lines = [record.getMessage() for record in caplog.records if record.name == "dibs.web"]
    assert [
        f"cancel of job 'a' in the queue {any_queue.name!r}: cancelled",
        f"forget of 1 selected jobs in the queue {any_queue.name!r}: 1 done",
    ] == lines
