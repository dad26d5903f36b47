"""`dibs schedule`: list, make, pause, resume and remove schedules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import rich_click as click
from attrs import frozen
from msgspec.structs import replace

from dibs.cli import json_output, options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, print_answers
from dibs.cli.parsing import parse_json
from dibs.cli.storage_access import connect, import_application, warn_of_new_queue
from dibs.cli.tables import format_age, print_in_format
from dibs.client.calls.handler_registry import schedule_of
from dibs.client.options.serde import JSON
from dibs.client.stored_schedules import (
    find_schedules,
    pause_schedule,
    readable_schedule,
    remove_schedule,
    schedule_id,
    schedule_name,
    set_schedule,
)
from dibs.model.duration_text import format_duration
from dibs.model.job import JobData, Slot
from dibs.model.results import QueueInfo
from dibs.model.schedule import OVERLAPS, TICK_ID, Every, Overlap, Schedule
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from dibs.app import Dibs

COLUMNS: Final = ("queue", "name", "schedule", "=next run", "=in", "state")
MEANINGS: Final = {"not_found": "the queue has no schedule with this name"}


@frozen
class Ticks:
    """The next runs of a schedule."""

    queue: str
    #: The name of a schedule made at run time; "" for the one that a task declares.
    name: str
    #: The times, as in "every 12h"; "" if they cannot be read.
    schedule: str
    #: "waiting", "active", "paused" (the schedule or its queue), or "not stored" if no worker has stored the
    #: next run yet.
    state: str
    #: The times of the runs, in ms since the epoch, the next one first.
    times: list[int]


@click.group("schedule")
def command() -> None:
    """List, make, pause, resume and remove schedules.

    NAME is the name of a schedule made at run time. Without it, a command is about the schedule that the task
    of the queue declares with `every` or `cron`, which a worker stores when it starts. Each
    command prints JSON with --json.

    Example:
        dibs schedule pause reports.tenant tenant-7 --url file:./jobs
    """


@command.command("list")
@click.argument(
    "application", metavar="[MODULE:APP]", required=False, help="The application, as package.module:app."
)
@click.option(
    "--next",
    "count",
    type=options.Number(1, 100),
    metavar="N",
    default=1,
    help="Runs to print for each schedule.",
)
@options.url
@options.output
def list_(application: str | None, *, count: int, url: str | None, output: Format) -> None:
    """List the next runs of schedules, the next one first.

    With an application, also list the schedules that it declares and that no worker has stored yet.

    Example:
        dibs schedule list reports:app --next 3 --url file:./jobs
    """
    app = None if application is None else import_application(application, url)
    schedules = {} if app is None else _declared_schedules(app)
    asyncio.run(_print_schedules(schedules, count, url or (app.url if app else None), output))


@command.command("add")
@options.queue
@click.argument("name", metavar="NAME", help="Name of the schedule. An existing one is changed in place.")
@click.argument("data", metavar="JSON", help="Payload of each job. Use - to read it from stdin.")
@click.option("--cron", metavar="EXPRESSION", help='Times, as "0 3 * * *".')
@click.option("--tz", metavar="ZONE", help="Time zone of --cron. Default: UTC.")
@click.option("--every", type=options.Seconds(), metavar="DURATION", help="Interval, as 30m.")
@click.option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    default="queue",
    help="A time during a run: run after it, skip it, or replace the run. Default: queue.",
)
@click.option("--skip-missed", is_flag=True, help="Skip missed times. Default: run once after them.")
@options.url
@options.json
async def add(
    queue: str,
    name: str,
    data: str,
    *,
    cron: str | None,
    tz: str | None,
    every: float | None,
    overlap: Overlap,
    skip_missed: bool,
    url: str | None,
    json: bool,
) -> None:
    """Make a schedule, or change the one with this name. The payload is that of `dibs enqueue`.

    Example:
        dibs schedule add report tenant-7 '{"args": ["tenant-7"], "kwargs": {}}' --cron "0 3 * * *"
    """
    settings = {"cron": cron, "tz": tz, "every": every, "catch_up": not skip_missed, "overlap": overlap}
    payload = JSON.encode(parse_json(data, "the payload"))
    schedule = replace(schedule_of(settings), data=JobData(payload=payload))
    id = schedule_id(name)
    async with connect(url, create=True) as storage:
        await warn_of_new_queue(storage, queue)
        await set_schedule(storage, queue, id, schedule)
    print_answers(queue, [name], ["set"], meanings={"set": _describe(schedule)}, good=("set",), json=json)


def _change(verb: str, answer: str, text: str) -> None:
    """Add the command `verb`, which changes the schedule with a name and prints `answer`."""

    @command.command(verb, help=text)
    @options.queue
    @click.argument("name", metavar="[NAME]", required=False, help="Name of the schedule.")
    @options.url
    @options.json
    async def change(queue: str, name: str | None, *, url: str | None, json: bool) -> ExitCode:
        id = TICK_ID if name is None else schedule_id(name)
        async with connect(url) as storage:
            if verb == "remove":
                found = await remove_schedule(storage, queue, id)
            else:
                found = await pause_schedule(storage, queue, id, paused=verb == "pause")
        answers = [answer if found else "not_found"]
        return print_answers(queue, [name or TICK_ID], answers, meanings=MEANINGS, good=(answer,), json=json)


_change("pause", "paused", "Stop a schedule until `dibs schedule resume`. An active run goes on.")
_change("resume", "resumed", "Let a paused schedule go on at its next time.")
_change(
    "remove",
    "removed",
    "End a schedule. An active run goes on. A worker that starts with a declared schedule stores it again.",
)


def _declared_schedules(app: Dibs) -> dict[str, Schedule]:
    return {name: each.schedule for name, each in app.handlers.items() if each.schedule is not None}


async def _print_schedules(
    schedules: Mapping[str, Schedule], count: int, url: str | None, output: Format
) -> None:
    async with connect(url) as storage:
        found = await _read_ticks(storage, schedules, count)
    print_in_format(
        output,
        {"schedules": [_tick_fields(ticks) for ticks in found]},
        COLUMNS,
        [row for ticks in found for row in _tick_rows(ticks, output)],
        optional=("name",),
        empty="there is no schedule; `dibs schedule list MODULE:APP` reads those of an application",
    )


async def _read_ticks(storage: Storage, schedules: Mapping[str, Schedule], count: int) -> list[Ticks]:
    stored = {info.name: info for info in await storage.queues()}
    ticks = []
    for queue in sorted({*stored, *schedules} - {WORKERS_QUEUE}):
        slots = {id: slot async for id, slot in find_schedules(storage, queue)} if queue in stored else {}
        if queue in schedules and TICK_ID not in slots:
            [slots[TICK_ID]] = await storage.get(queue, [TICK_ID])
        for id, slot in slots.items():
            declared = schedules.get(queue) if id == TICK_ID else None
            ticks.append(_next_ticks(queue, id, slot, declared, stored.get(queue), count))
    return sorted(ticks, key=lambda each: (each.times, each.queue, each.name))


def _next_ticks(
    queue: str, id: str, slot: Slot, declared: Schedule | None, info: QueueInfo | None, count: int
) -> Ticks:
    job, schedule = slot.current, readable_schedule(slot) or declared
    now = int(time.time() * 1000)
    times = [] if job is None or job.run is not None else [job.run_at]
    if slot.successor is not None:
        times = [slot.successor.run_at]
    state = "not stored" if job is None else "waiting" if job.run is None else "active"
    if info is not None and info.settings.paused:
        state = "paused"
    if schedule is not None and schedule.paused:
        state, times = "paused", []
    else:
        while schedule is not None and len(times) < count:
            times.append(schedule.times.after(max([now, *times])))
    return Ticks(queue, schedule_name(id), _describe(schedule), state, times[:count])


def _describe(schedule: Schedule | None) -> str:
    if schedule is None:
        return ""
    overlap = "" if schedule.overlap == "queue" else f", {schedule.overlap}"
    if isinstance(schedule.times, Every):
        return f"every {format_duration(schedule.times.length)}{overlap}"
    return f"cron {schedule.times.expression} {schedule.times.tz}{overlap}"


def _tick_fields(ticks: Ticks) -> dict[str, Any]:
    return {
        "queue": ticks.queue,
        "name": ticks.name,
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
            ticks.name,
            ticks.schedule,
            "" if moment is None else json_output.format_time(moment),
            ""
            if moment is None
            else f"{int((moment - now) / 1000)}"
            if output == "lines"
            else format_age(moment - now),
            ticks.state,
        )
        for moment in moments
    ]
