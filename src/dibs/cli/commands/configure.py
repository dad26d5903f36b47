"""`dibs configure`: show and change the settings of a queue."""

from __future__ import annotations

from typing import Any, Final, get_args

import rich_click as click
from msgspec import UNSET, structs

from dibs.cli import json_output, options
from dibs.cli.errors import UsageError
from dibs.cli.options import Format
from dibs.cli.parsing import FOR_EVER, NO_LIMIT, parse_rate, setting_rows
from dibs.cli.storage_access import connect, warn_of_new_queue
from dibs.cli.tables import print_in_format
from dibs.client.options.job_settings import ENDS, Retention
from dibs.client.options.queue_settings import Rate, build_patch
from dibs.errors import Refused
from dibs.model.check_arguments import MOST_LOG_RESULTS
from dibs.model.requests import LogLevel, Settings, WhenFull

LOG_LEVELS: Final = get_args(LogLevel)
WHEN_FULL: Final = get_args(WhenFull)


@click.command("configure")
@options.queue
@click.option(
    "--paused", type=click.Choice(["yes", "no"]), metavar="yes|no", help="Stop claims, or allow them."
)
@click.option("--max-active", metavar="N", help="Most jobs that workers run at the same time, or none.")
@click.option("--per-key", metavar="N", help="Most jobs of one key that run at the same time, or none.")
@click.option(
    "--rate", metavar="RATE", help="How often runs start, as 5/s, 100/h, 10/30s or '5/s burst 10', or none."
)
@click.option("--key-rate", metavar="RATE", help="How often runs of one key start, as --rate.")
@click.option("--max-waiting", metavar="N", help="Waiting jobs at which an enqueue adds no job, or none.")
@click.option(
    "--when-full",
    type=click.Choice(WHEN_FULL),
    metavar="refuse|drop_new",
    help="At --max-waiting, refuse new jobs with an error, or drop them.",
)
@click.option(
    "--fair",
    type=click.Choice(["yes", "no"]),
    metavar="yes|no",
    help="Whether keys take turns, so that none waits behind all jobs of another.",
)
@click.option(
    "--share",
    "shares",
    metavar="KEY=N",
    multiple=True,
    help="Starts in a turn of a key, as acme=3, or none. 0 pauses the key. May be repeated.",
)
@click.option(
    "--retention",
    metavar="[KIND=]DURATION",
    multiple=True,
    help="Time that outcomes are kept, as 1h or failed=30d or forever. May be repeated. "
    "KIND is completed, failed or cancelled.",
)
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), metavar="LEVEL", help=f"One of {', '.join(LOG_LEVELS)}."
)
@click.option(
    "--log-age", type=options.Seconds(min=0), metavar="DURATION", help="Time that events are kept, as 12h."
)
@click.option(
    "--log-bytes", type=options.Number(min=0), metavar="N", help="Largest size of the log in bytes."
)
@click.option(
    "--log-results",
    type=options.Number(0, MOST_LOG_RESULTS),
    metavar="N",
    help=f"Longest result in the log, in bytes, at most {MOST_LOG_RESULTS}. 0 is none.",
)
@click.option(
    "--request-key-age",
    type=options.Seconds(min=0),
    metavar="DURATION",
    help="Time that request keys are remembered, as 30m.",
)
@click.option(
    "--fail-handler",
    type=click.Choice(["yes", "no"]),
    metavar="yes|no",
    help="Whether each failed job gets a job of the failure handler. Workers with one set it.",
)
@options.url
@options.output
async def command(
    queue: str,
    *,
    shares: tuple[str, ...],
    retention: tuple[str, ...],
    url: str | None,
    output: Format,
    **given: Any,
) -> None:
    """Change settings of a queue, and print all of them. Without an option, only print them.

    A setting that is left out stays. Settings apply to later claims and ends, in all workers. A setting that
    a task declares (`@app.task(max_active=...)`) is written again when a worker starts.

    Examples:
        dibs configure emails --max-active 10 --url file:./jobs
        dibs configure emails --retention failed=30d --url file:./jobs
        dibs configure emails --per-key 1 --rate 5/s --url file:./jobs
        dibs configure answers --key-rate '100000/m unit 1000' --url file:./jobs
        dibs configure emails --max-waiting 10000 --when-full drop_new --url file:./jobs
        dibs configure emails --fair yes --share acme=3 --share old=none --url file:./jobs
    """
    changes = {
        name: _READERS.get(name, _as_given)(name, value) for name, value in given.items() if value is not None
    }
    if shares:
        changes["shares"] = dict(map(_parse_share, shares))
    ages = _parse_retention(retention)
    patch = build_patch(changes)  # type: ignore[arg-type]
    is_change = bool(changes or ages)
    async with connect(url, create=is_change) as storage:
        stored = {info.name: info.settings for info in await storage.queues()}
        settings = stored.get(queue, Settings())
        if ages:
            patch = structs.replace(patch, retention=structs.replace(settings.retention, **ages))
        if is_change:
            await warn_of_new_queue(storage, queue)
            settings = await storage.configure(queue, patch)
        elif queue not in stored:
            raise Refused(f"queue {queue!r} does not exist in {storage.url}", field="queue")
    fields = {"queue": queue, "settings": json_output.settings_fields(settings)}
    print_in_format(output, fields, ["setting", "value"], setting_rows(settings), empty="")


def _parse_limit(name: str, text: str) -> int | Rate | None:
    option = f"--{name.replace('_', '-')}"
    if text == NO_LIMIT:
        return None
    if name.endswith("rate"):
        return parse_rate(option, text)
    least = 0 if name == "max_active" else 1
    if not (text.isdecimal() and len(text) < 20 and int(text) >= least):
        raise UsageError(f"{option} is {text!r:.60}; write a whole number from {least}, or {NO_LIMIT}")
    return int(text)


def _is_yes(_name: str, text: str) -> bool:
    return text == "yes"


def _as_given(_name: str, value: Any) -> Any:
    return value


#: Option -> the function that returns its value, if that is not the value of click.
_READERS: Final = {
    **dict.fromkeys(("paused", "fail_handler", "fair"), _is_yes),
    **dict.fromkeys(("max_active", "per_key", "rate", "key_rate", "max_waiting"), _parse_limit),
}


def _parse_share(text: str) -> tuple[str, int | None]:
    """Return the key and the share of --share; None removes its entry. A key may contain `=`."""
    key, equals, share = text.rpartition("=")
    is_number = share.isdecimal() and len(share) < 20
    if not (equals and key and (is_number or share == NO_LIMIT)):
        raise UsageError(
            f"--share is {text!r:.60}; write a key and a whole number from 0, as acme=3, or acme={NO_LIMIT}"
        )
    return key, int(share) if is_number else None


def _parse_retention(texts: tuple[str, ...]) -> dict[str, int | None]:
    """Return the ages of --retention in ms, by kind of end; None keeps outcomes for ever."""
    ages: dict[str, int | None] = {}
    for text in texts:
        kind, equals, age = text.partition("=")
        kinds = [kind] if equals else [*ENDS]
        if not {*kinds} <= {*ENDS}:
            raise UsageError(f"--retention is {text!r}; the kinds are {', '.join(ENDS)}, as in failed=30d")
        ages.update(dict.fromkeys(kinds, _parse_age(age if equals else text)))
    return ages


def _parse_age(text: str) -> int | None:
    if text == FOR_EVER:
        return None
    try:
        seconds: Any = float(text) if text.replace(".", "", 1).isdecimal() else text
        age = Retention(failed=seconds).to_model().failed
    except Refused:
        raise UsageError(
            f"--retention is {text!r}; write a duration (at most 100000d), as 30d or 1h30m, or {FOR_EVER}"
        ) from None
    assert age is not UNSET, "bug in dibs: the field is set"  # noqa: S101
    return age
