"""`dibs failures`: list the failed and the retrying jobs of all queues by type of error."""

from __future__ import annotations

import time

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.failed_jobs import ErrorTypeGroup, group_failures
from dibs.cli.options import Format
from dibs.cli.output import ExitCode
from dibs.cli.progress import progress_bar
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import format_age, print_in_format

COLUMNS = ("error", "queue", "#failed", "#retrying", "=oldest", "=newest", "examples")
#: Columns that the table leaves out if they are empty.
OPTIONAL = ("#retrying", "=oldest", "=newest")


@click.command("failures")
@options.queues
@options.url
@options.output
async def command(queues: tuple[str, ...], *, url: str | None, output: Format) -> ExitCode:
    """List the failed and the retrying jobs of all queues, grouped by type of error and queue.

    A group has the number of its jobs that failed for good and of those that wait to run again after the
    error, the age of its oldest and newest failure, and the ids of some jobs. Up to 1,000 retrying jobs of a
    queue are read; if it has more, their numbers are estimates. Failed jobs are kept for 7 days, unless the
    retention of the queue or of the job is another.

    `dibs show QUEUE ID` prints the error of a job, and `dibs retry --error TYPE` enqueues a group again.
    Exit code 1 if a queue does not exist.

    Example:
        dibs failures --url file:./jobs
    """
    async with connect(url) as storage:
        names, code = await select_queues(storage, queues)
        counts = await storage.counts(names)
        with progress_bar("failed jobs read", sum(found.failed for found in counts.values())) as advance:
            groups = await group_failures(storage, counts, advance)
    print_in_format(
        output,
        {"failures": [_group_fields(group) for group in groups]},
        COLUMNS,
        [_group_row(group, output) for group in groups],
        optional=OPTIONAL,
        empty="no job has failed",
    )
    return code


def _group_fields(group: ErrorTypeGroup) -> dict[str, object]:
    return {
        "error": group.error,
        "queue": group.queue,
        "failed": group.failed,
        "retrying": group.retrying,
        "oldest": json_output.format_time(group.oldest),
        "newest": json_output.format_time(group.newest),
        "message": group.message,
        "ids": group.ids,
    }


def _group_row(group: ErrorTypeGroup, output: Format) -> tuple[object, ...]:
    moments = (group.oldest, group.newest)
    if output == "lines":
        times = [json_output.format_time(moment) or "" for moment in moments]
    else:
        now = time.time() * 1000
        times = ["" if moment is None else format_age(now - moment) for moment in moments]
    return group.error, group.queue, group.failed, group.retrying, *times, ", ".join(group.ids)
