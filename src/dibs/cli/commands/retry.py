"""`dibs retry`: enqueue failed jobs again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import rich_click as click

from dibs.cli import options
from dibs.cli.completion import complete_queue
from dibs.cli.errors import UsageError
from dibs.cli.failed_jobs import count_failed, find_failed_ids, retry_all
from dibs.cli.output import ExitCode, print_answers, print_json, print_lines, print_warning
from dibs.cli.progress import check_can_confirm, confirm, progress_bar
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import print_table
from dibs.client.options.arguments import duration_ms
from dibs.client.stored_queue import spread_retries

MEANINGS: Final = {
    "live": "a job with this id waits or runs already",
    "not_kept": "its payload was not kept; enqueue it again",
    "completed": "it has completed; only failed jobs can be retried",
    "cancelled": "it was cancelled; only failed jobs can be retried",
    "not_found": "there is no job with this id, or its outcome has expired",
}


@click.command("retry")
@click.argument(
    "queue",
    metavar="[QUEUE]",
    required=False,
    help="Name of the queue. With --all or --error, the default is all queues.",
    shell_complete=complete_queue,
)
@click.argument(
    "ids", metavar="[ID...]", nargs=-1, help="Ids of failed jobs; leave out with --all or --error."
)
@click.option("--all", "everything", is_flag=True, help="Retry all failed jobs.")
@click.option("--error", metavar="TYPE", help="Retry the jobs that failed with this type of error.")
@click.option(
    "--over",
    type=options.Seconds(min=0),
    metavar="DURATION",
    default=0.0,
    show_default=False,
    help="Spread the starts evenly over this time, in steps of 100 jobs. Default: all at once.",
)
@options.yes
@options.url
@options.json
async def command(
    queue: str | None,
    ids: tuple[str, ...],
    *,
    everything: bool,
    error: str | None,
    over: float,
    yes: bool,
    url: str | None,
    json: bool,
) -> ExitCode:
    """Enqueue failed jobs again, with the payload of the failed run.

    Attempts, retries and stalls are counted from 0 again, and the failed outcome is removed. Exit code 1 if
    one of the jobs is waiting or active, has not failed, or failed without keeping its payload.

    TYPE is a type that `dibs failures` prints, or its last part. With --all and --error, the command prints
    the number of jobs and asks; a program confirms with --yes.

    Examples:
        dibs retry emails welcome-42 --url file:./jobs
        dibs retry --error ConnectionError --over 10m --yes --url file:./jobs
    """
    if bool(ids) + everything + (error is not None) != 1:
        raise UsageError("retry needs ids, --all or --error; pass one of them")
    if ids:
        assert queue is not None, "bug in dibs: the queue is the argument before the ids"  # noqa: S101
        async with connect(url) as storage:
            answers = [
                answer
                for batch, delay in spread_retries(ids, duration_ms("over", over))
                for answer in await storage.retry_failed(queue, batch, delay=delay)
            ]
        return print_answers(queue, ids, answers, meanings=MEANINGS, good=("queued",), json=json)
    check_can_confirm(yes=yes)
    async with connect(url) as storage:
        names, code = await select_queues(storage, [queue] if queue is not None else [])
        counted = await count_failed(storage, names)
        with progress_bar("failed jobs read", sum(counted.values())) as advance:
            found = await find_failed_ids(storage, counted, error, advance)
        total = sum(map(len, found.values()))
        if not total:
            _print_numbers({}, json=json)
            if error is None or not sum(counted.values()):
                return code
            if not json:
                print_warning(f"no failed job has the error {error}; `dibs failures` prints those that have")
            return ExitCode.REFUSED
        kind = f" with {error}" if error else ""
        where = f"of {next(iter(found))}" if len(found) == 1 else f"of {len(found)} queues"
        if not confirm(f"Retry {total:,} failed jobs{kind} {where}?", yes=yes):
            return ExitCode.REFUSED
        with progress_bar("retried", total) as advance:
            numbers = await retry_all(storage, found, duration_ms("over", over), advance)
    _print_numbers(numbers, json=json)
    return (
        ExitCode.DONE
        if all(answers.keys() <= {"queued"} for answers in numbers.values())
        else ExitCode.REFUSED
    )


def _print_numbers(numbers: Mapping[str, Mapping[str, int]], *, json: bool) -> None:
    if json:
        print_json({"queues": numbers})
        return
    rows = [
        (queue, answer, number, MEANINGS.get(answer, ""))
        for queue, answers in numbers.items()
        for answer, number in answers.items()
    ]
    print_table(["queue", "=answer", "#jobs", ""], rows, optional=[""], empty="there is no such failed job")
    queued = sum(answers.get("queued", 0) for answers in numbers.values())
    if numbers:
        print_lines(f"{queued:,} failed jobs are enqueued again")
