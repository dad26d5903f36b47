"""Options of tasks: the schedules that they make, what their jobs get, and the defaults of an app."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from dibs import BadHandler, Dibs, Refused, TaskSettings, Update
from dibs.client.calls.handler import Handler
from dibs.client.calls.handler_registry import interval_ms
from dibs.model.cron import Cron
from dibs.model.schedule import Every, Schedule
from tests.client import handlers


def declared(app: Dibs, **settings: Any) -> Handler:
    app.task(queue="q", **settings)(handlers.refresh)
    return app.handlers["q"]


@pytest.mark.parametrize(
    ("every", "ms"),
    [
        ("5m", 300_000),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("250ms", 250),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        (300, 300_000),
        (0.25, 250),
        (timedelta(minutes=5), 300_000),
    ],
)
def test_an_interval_is_said_in_many_ways(every: Any, ms: int) -> None:
    assert ms == interval_ms(every)


def test_a_task_carries_its_schedule(app: Dibs) -> None:
    handler = declared(app, every="5m", timeout=5)

    assert handler.schedule is not None
    assert (Every(300_000), True) == (handler.schedule.times, handler.schedule.catch_up)
    assert {"args": [], "kwargs": {}} == msgspec.json.decode(handler.schedule.data.payload)
    assert 5000 == handler.limits.timeout


def test_a_cron_expression_has_a_zone(app: Dibs) -> None:
    schedule = declared(app, cron="*/5 * * * *", tz="Europe/Berlin", catch_up=False, overlap="skip").schedule

    assert isinstance(schedule, Schedule)
    assert (Cron("*/5 * * * *", "Europe/Berlin"), False) == (schedule.times, schedule.catch_up)
    assert "skip" == schedule.overlap


def test_without_a_zone_it_is_utc(app: Dibs) -> None:
    assert "UTC" == declared(app, cron="0 3 * * *").schedule.times.tz  # type: ignore[union-attr]


def test_a_task_without_has_none(app: Dibs) -> None:
    assert declared(app, timeout=5, every=None).schedule is None


def test_nobody_would_give_it_arguments(app: Dibs) -> None:
    with pytest.raises(BadHandler, match=r"thumbnail is periodic.*'path'"):
        app.task(every="5m")(handlers.thumbnail)


def test_only_a_task_is_periodic(app: Dibs) -> None:
    with pytest.raises(Refused, match="every"):
        app.queue("q").handler(every="5m")(handlers.take)  # type: ignore[call-overload]
    with pytest.raises(Refused, match="cron"):
        app.task(handlers.refresh).on_failure(cron="* * * * *")(handlers.alert)  # type: ignore[call-overload]


def test_what_is_declared_later_keeps_it(app: Dibs) -> None:
    task = app.task(queue="q", every="5m")(handlers.refresh)
    task.on_failure(handlers.alert)

    assert app.handlers["q"].schedule is not None


# -- what each job gets ------------------------------------------------------------------------------


def test_the_ticks_of_a_task_have_its_priority(app: Dibs) -> None:
    schedule = declared(app, every="5m", priority=7).schedule

    assert 7 == (schedule and schedule.data.priority)


async def test_a_job_has_the_priority_and_the_deadline_of_its_task(app: Dibs) -> None:
    task = app.task(queue="q", priority=7, start_by="1h")(handlers.refresh)
    await task.options(id="own", priority=-2, start_by=None).enqueue()
    await task.options(id="later", delay=60).enqueue()
    await task.enqueue_many([task.options(id="bound").bind()])
    before = datetime.now(UTC)
    plain = await task.enqueue()
    waiting = [each async for each in task.queue.list("waiting")]
    waiting += [each async for each in task.queue.list("scheduled")]
    found = {each.id: each for each in waiting}

    deadline = found[plain.id].limits["start_by"]
    assert timedelta(minutes=59) < deadline - before < timedelta(minutes=61)
    assert {"own": -2, "later": 7, "bound": 7, plain.id: 7} == {
        id: each.priority for id, each in found.items()
    }
    assert {"later", "bound", plain.id} == {id for id, each in found.items() if each.limits.get("start_by")}


async def test_an_update_of_a_time_alone_takes_no_options_of_the_task(app: Dibs) -> None:
    task = app.task(queue="q", priority=7)(handlers.refresh)
    await task.options(id="a").enqueue()
    await task.options(id="a", delay=60, on_conflict=Update(create=False)).enqueue()

    found = await task.queue.get("a")
    assert 7 == (found and found.priority)


# -- defaults of an app ------------------------------------------------------------------------------


async def test_an_app_has_defaults_for_its_tasks_and_handlers() -> None:
    settings: TaskSettings = {"timeout": "5m", "retry_on": OSError, "priority": 3, "retention": 60}
    async with Dibs("memory:", defaults=settings) as app:
        plain = app.task(queue="plain")(handlers.refresh)
        own = app.task(queue="own", timeout=1, priority=4)(handlers.refresh)
        app.queue("queue").handler(max_retries=2)(handlers.send)
        own.on_failure(handlers.alert)
        await plain.options(id="a").enqueue()
        await own.options(id="a").enqueue()
        found = [await task.queue.get("a") for task in (plain, own)]
        made = app.handlers
    assert [3, 4] == [status and status.priority for status in found]
    assert {"plain": 300_000, "own": 1000, "queue": 300_000, "own!fail": 60_000} == {
        name: handler.limits.timeout for name, handler in made.items()
    }
    assert [(OSError,), (BaseException,)] == [made[name].retry_on for name in ("queue", "own!fail")]
    assert {"plain", "own", "queue"} == {name for name, handler in made.items() if handler.queue_settings}
