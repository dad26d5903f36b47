"""The word for a state of jobs has one number, wherever an operator reads it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dibs import Dibs
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, HandOff, RetryLater, SettleAction, Settlement
from dibs.telemetry.storage_metrics import StorageMetrics
from dibs.web import dibs_web
from tests.cli.shell import Shell
from tests.storage_urls import new_url
from tests.web.conftest import browse
from tests.web.jobs import claim, storage_of

DOWN = Error(type="shop.Down", message="no route")
ACTIONS: tuple[SettleAction, ...] = (
    RetryLater(delay=3_600_000, error=DOWN),
    RetryLater(delay=0, error=DOWN),
    Fail(error=DOWN),
    Complete(),
    HandOff(),
)
#: Handed-off jobs are among the active ones, scheduled and retrying jobs among the waiting ones.
EXPECTED = {
    "waiting": 7, "scheduled": 4, "retrying": 2, "active": 3, "handed_off": 1, "blocked": 1,
    "completed": 1, "failed": 1, "cancelled": 1,
}  # fmt: skip


async def fill(app: Dibs) -> None:
    queue = app.queue("emails")
    await queue.enqueue_many(queue.bind(n, id=f"run-{n}") for n in range(len(ACTIONS)))
    claimed = await claim(queue, len(ACTIONS))
    settlements = [
        Settlement(id=id, fence=fence, action=action)
        for (id, fence), action in zip(claimed, ACTIONS, strict=True)
    ]
    await (await storage_of(queue)).settle(queue.name, settlements)
    await queue.enqueue(0, id="gone")
    await queue.cancel("gone")
    await queue.enqueue_many(queue.bind(n, id=f"now-{n}", priority=9) for n in range(4))
    await queue.enqueue_many(queue.bind(n, id=f"later-{n}", delay=3600) for n in range(3))
    active = await claim(queue, 2)
    await queue.enqueue(0, id=active[0][0])


async def numbers_of_pages_and_metrics(url: str) -> dict[str, Any]:
    async with Dibs(url) as app, browse(dibs_web(app, allow="read")) as browser:
        overview = (await browser.get("/api/overview")).json()
        queue = (await browser.get("/api/queue", name="emails")).json()
        samples = [sample for metric in await StorageMetrics(app).read() for sample in metric.samples]
        return {
            "totals of the overview": overview["totals"],
            "row of the overview": overview["rows"][0]["counts"],
            "page of the queue": queue["counts"],
            "metrics": {
                each.labels["state"]: int(each.value) for each in samples if each.name == "dibs_jobs"
            },
        }


@pytest.mark.parametrize("scheme", ["file", "redis", "postgresql"])
def test_each_word_has_one_number(scheme: str, shell: Shell, request: pytest.FixtureRequest) -> None:
    shell.url = new_url(scheme, request)

    async def fill_storage() -> None:
        async with Dibs(shell.url) as app:
            await fill(app)

    asyncio.run(fill_storage())
    found = asyncio.run(numbers_of_pages_and_metrics(shell.url))
    found["dibs counts"] = shell.json("counts")["queues"]["emails"]
    found["dibs top"] = shell.json("top", "--interval", "0.1")["queues"]["emails"]
    found["dibs list"] = {
        state: len(shell.json("list", "emails", "--state", state)["jobs"])
        for state in EXPECTED
        if state != "retrying"
    }

    for place, numbers in found.items():
        shown = {state: numbers[state] for state in EXPECTED if state in numbers}
        assert shown == {state: EXPECTED[state] for state in shown}, place
        assert "waiting" in shown, place
