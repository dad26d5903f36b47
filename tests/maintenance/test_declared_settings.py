"""The settings that a task declares are in the storage once a worker has started."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dibs import Dibs, Refused, Retention
from dibs.model.requests import Settings
from tests.client import handlers


async def settings(app: Dibs, queue: str) -> Settings:
    return {info.name: info.settings for info in await app.storage.queues()}[queue]


async def test_a_worker_writes_what_the_decorator_states(any_url: str) -> None:
    async with Dibs(any_url) as app:
        app.task(queue="q", max_active=3, retention=60)(handlers.refresh)
        app.queue("plain").handler(max_active=None)(handlers.take)
        await app.queue("q").configure(max_active=8, log_age=60)
        await app.queue("plain").configure(retention=5)

        await app.work(until="empty")

        found = await settings(app, "q")
        assert (found.max_active, found.log_age) == (3, 60_000)
        assert Retention.from_model(found.retention) == Retention(completed=60, failed=60, cancelled=60)
        assert (await settings(app, "plain")).retention.completed == 5000


async def test_what_is_configured_from_outside_stays_where_the_decorator_states_none(app: Dibs) -> None:
    app.task(queue="q", retention=60)(handlers.refresh)
    await app.queue("q").configure(max_active=8)

    await app.work(until="empty")

    assert (await settings(app, "q")).max_active == 8


async def test_each_change_is_logged_and_a_second_start_changes_nothing(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(queue="q", max_active=3)(handlers.refresh)
    caplog.set_level(logging.INFO, "dibs.worker")
    await app.work(until="empty")
    first = [record.getMessage() for record in caplog.records if "max_active" in record.getMessage()]
    caplog.clear()

    await app.work(until="empty")
    second = [record for record in caplog.records if "max_active" in record.getMessage()]
    await app.queue("q").configure(max_active=5)
    await app.work(until="empty")

    assert first == ["q: max_active is 3 now, as its handler declares; it was None"]
    assert second == []
    (warning,) = [record for record in caplog.records if "max_active" in record.getMessage()]
    assert (warning.levelname, "it was 5" in warning.getMessage()) == ("WARNING", True)


@pytest.mark.parametrize("wrong", [{"max_active": -1}, {"max_active": "3"}, {"retention": -1}])
def test_a_wrong_setting_is_refused_where_it_is_declared(wrong: dict[str, Any]) -> None:
    app = Dibs("memory:")
    with pytest.raises(Refused) as refused:
        app.task(queue="q", **wrong)(handlers.refresh)

    (field,) = wrong
    assert refused.value.field == field
