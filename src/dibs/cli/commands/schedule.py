"""`dibs schedule`: list the next runs of periodic tasks."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click
from attrs import frozen

from dibs.cli import json_output, options
from dibs.cli.options import Format
from dibs.cli.storage_access import connect
from dibs.cli.tables import format_age, print_in_format
from dibs.client.connection.url import URL_VARIABLE, resolve_url
from dibs.model.duration_text import format_duration
from dibs.model.job import Slot
from dibs.model.results import QueueInfo
from dibs.model.schedule import TICK_ID, Every, Schedule
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from dibs.client.app import Dibs

COLUMNS: Final = ("queue", "schedule", "=next run", "=in", "state")


@frozen
class Ticks:
    """The next runs of a periodic task."""

    queue: str
    #: The schedule that the application declares, as in "every 12h"; "" without an application.
    schedule: str
    #: "waiting", "active", "paused", or "not stored" if no worker has stored the next run yet.
    state: str
    #: The times of the runs, in ms since the epoch, the next one first.
    times: list[int]


@click.command("schedule")
@click.argument(
    "application", metavar="[MODULE:APP]", required=False, help="The application, as package.module:app."
)
@click.option(
    "--next",
    "count",
    type=options.Number(1, 100),
    metavar="N",
    default=1,
    help="Runs to print for each task.",
)
@options.url
@options.output
def command(application: str | None, *, count: int, url: str | None, output: Format) -> None:
    """List the next runs of periodic tasks, the next one first.

    Without an application, list the runs that workers have stored. With one, also print the schedules that it
    declares, tasks that no worker has started yet, and with --next the runs after the stored one.

    Example:
        dibs schedule reports:app --next 3 --url file:./jobs
    """
    app = None if application is None else _import_application(application, url)
    schedules = {} if app is None else _declared_schedules(app)
    asyncio.run(_print_schedule(schedules, count, url or (app.url if app else None), output))


def _import_application(application: str, url: str | None) -> Dibs:
    from dibs.worker.processes.app_import import import_app  # noqa: PLC0415 - slow: it imports the client

    if url is not None:
        os.environ[URL_VARIABLE] = resolve_url(url)
    sys.path.insert(0, str(Path.cwd()))
    return import_app(application)


def _declared_schedules(app: Dibs) -> dict[str, Schedule]:
    return {name: each.schedule for name, each in app.handlers.items() if each.schedule is not None}


async def _print_schedule(
    schedules: Mapping[str, Schedule], count: int, url: str | None, output: Format
) -> None:
    async with connect(url) as storage:
        found = await _read_ticks(storage, schedules, count)
    print_in_format(
        output,
        {"schedules": [_tick_fields(ticks) for ticks in found]},
        COLUMNS,
        [row for ticks in found for row in _tick_rows(ticks, output)],
        optional=("schedule",),
        empty="there is no periodic task; `dibs schedule MODULE:APP` reads those of an application",
    )


async def _read_ticks(storage: Storage, schedules: Mapping[str, Schedule], count: int) -> list[Ticks]:
    stored = {info.name: info for info in await storage.queues()}
    ticks = []
    for queue in sorted({*stored, *schedules} - {WORKERS_QUEUE}):
        [slot] = await storage.get(queue, [TICK_ID])
        schedule = schedules.get(queue)
        if slot.current is not None or schedule is not None:
            ticks.append(_next_ticks(queue, slot, schedule, stored.get(queue), count))
    return sorted(ticks, key=lambda each: (each.times, each.queue))


def _next_ticks(
    queue: str, slot: Slot, schedule: Schedule | None, info: QueueInfo | None, count: int
) -> Ticks:
    job = slot.current
    now = int(time.time() * 1000)
    times = [] if job is None or job.run is not None else [job.run_at]
    if slot.successor is not None:
        times = [slot.successor.run_at]
    while schedule is not None and len(times) < count:
        times.append(schedule.times.after(max([now, *times])))
    state = "not stored" if job is None else "waiting" if job.run is None else "active"
    if info is not None and info.settings.paused:
        state = "paused"
    return Ticks(queue, _describe(schedule), state, times[:count])


def _describe(schedule: Schedule | None) -> str:
    if schedule is None:
        return ""
    if isinstance(schedule.times, Every):
        return f"every {format_duration(schedule.times.length)}"
    return f"cron {schedule.times.expression} {schedule.times.tz}"


def _tick_fields(ticks: Ticks) -> dict[str, Any]:
    return {
        "queue": ticks.queue,
        "schedule": ticks.schedule or None,
        "state": ticks.state,
        "next": [json_output.format_time(moment) for moment in ticks.times],
    }


def _tick_rows(ticks: Ticks, output: Format) -> list[tuple[object, ...]]:
    now = time.time() * 1000
    # A run without a stored successor has no next time that the storage knows.
    moments: list[int | None] = [*ticks.times] or [None]
    return [
        (
            ticks.queue,
            ticks.schedule,
            json_output.format_time(moment),
            ""
            if moment is None
            else f"{int((moment - now) / 1000)}"
            if output == "lines"
            else format_age(moment - now),
            ticks.state,
        )
        for moment in moments
    ]
