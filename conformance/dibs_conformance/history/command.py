"""`dibs check-history`: whether a recorded history, or a queue's own log, can be true."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import rich_click as click

from dibs.errors import Refused
from dibs.storage.registry import open_storage
from dibs_conformance.history.check import CheckResult, check
from dibs_conformance.history.from_log import log_of
from dibs_conformance.history.step import Step, read_file, read_steps

EXIT_BROKEN = 1


@click.command("check-history")
@click.argument(
    "file",
    metavar="[FILE]",
    type=click.Path(path_type=Path),
    required=False,
    help="A history as JSON lines; - reads it from standard input.",
)
@click.option("--url", metavar="URL", help="A place, to read its log instead.")
@click.option("--queue", metavar="QUEUE", help="The queue whose log is read.")
@click.option("--json", is_flag=True, help="Print what was found as JSON.")
@click.pass_context
def check_history(
    ctx: click.Context, file: Path | None, *, url: str | None, queue: str | None, json: bool
) -> None:
    """Hold the rules of the contract against a recorded history, or against the log of a queue.

    A call without an answer may have happened or not; only what is certain breaks a rule. Exit codes: 0
    no rule is broken, 1 one is, or the history cannot be read, 2 wrong words.

    Example: dibs check-history --url file:./jobs --queue emails
    """
    began = time.monotonic()
    # A log does not tell all that brute force must know.
    checked = check(steps_from(file, url, queue), deep=False if url else None)
    seconds = time.monotonic() - began
    click.echo(msgspec.json.encode(checked).decode() if json else "\n".join(lines(checked, seconds)))
    ctx.exit(EXIT_BROKEN if checked.failures else 0)


def steps_from(file: Path | None, url: str | None, queue: str | None) -> Iterable[Step]:
    """The history that is meant. Raises UsageError for two, or none."""
    if (file is None) == (url is None):
        raise click.UsageError("name a FILE, or a --url with its --queue")
    if file is not None:
        return read_steps(sys.stdin.buffer) if str(file) == "-" else read_file(file)
    if url is None or not queue:
        raise click.UsageError("--url needs --queue: a history is that of one queue")
    return asyncio.run(read_log(url, queue))


async def read_log(url: str, queue: str) -> list[Step]:
    async with open_storage(url) as storage:
        if not storage.capabilities.shared and not storage.capabilities.durable:
            raise Refused(f"{storage.url} lives inside one process: there is no log to read", field="url")
        return await log_of(storage, queue)


def lines(checked: CheckResult, seconds: float) -> Iterable[str]:
    """What was found, for people."""
    verdict = "BROKEN" if checked.failures else "no rule is broken"
    yield (
        f"{verdict}: {checked.steps:,} steps, {checked.ids:,} ids, {checked.runs:,} runs, "
        f"{checked.unknown:,} without an answer, {seconds:.1f} s"
    )
    width = max(len(law.name) for law in checked.laws)
    for law in checked.laws:
        yield f"  {law.name:<{width}}  {law.met:>9,}  {law.verdict}"
    for failure in checked.failures:
        yield ""
        yield f"BROKEN: {failure.law}: {failure.why}"
        yield from failure.story
