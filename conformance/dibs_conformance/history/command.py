"""The command `dibs check-history`: checks a recorded history, or the event log of a queue."""

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
from dibs_conformance.steps import RecordedStep, read_file, read_steps

EXIT_BROKEN = 1


@click.command("check-history")
@click.argument(
    "file",
    metavar="[FILE]",
    type=click.Path(path_type=Path),
    required=False,
    help="A history as JSON lines; - reads standard input.",
)
@click.option("--url", metavar="URL", help="A storage whose event log is read instead.")
@click.option("--queue", metavar="QUEUE", help="The queue whose log is read, with --url.")
@click.option("--json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def check_history(
    ctx: click.Context, file: Path | None, *, url: str | None, queue: str | None, json: bool
) -> None:
    """Check a recorded history, or the event log of a queue, against the contract.

    A call without an answer may have had an effect or not; a rule is broken only if both are impossible. Exit
    codes: 0 no rule is broken, 1 a rule is broken or the history cannot be read, 2 usage error.

    Example: dibs check-history --url file:./jobs --queue emails
    """
    began = time.monotonic()
    checked = check(steps_from(file, url, queue))
    seconds = time.monotonic() - began
    click.echo(msgspec.json.encode(checked).decode() if json else "\n".join(lines(checked, seconds)))
    ctx.exit(EXIT_BROKEN if checked.failures else 0)


def steps_from(file: Path | None, url: str | None, queue: str | None) -> Iterable[RecordedStep]:
    """Return the steps of the file or the log. Raises UsageError unless exactly one is given."""
    if (file is None) == (url is None):
        raise click.UsageError("expected either a FILE, or --url with --queue")
    if file is not None:
        return read_steps(sys.stdin.buffer) if str(file) == "-" else read_file(file)
    if url is None or not queue:
        raise click.UsageError("--url needs --queue: a history covers one queue")
    return asyncio.run(read_log(url, queue))


async def read_log(url: str, queue: str) -> list[RecordedStep]:
    async with open_storage(url) as storage:
        if not storage.capabilities.shared and not storage.capabilities.durable:
            raise Refused(
                f"{storage.url} exists only inside one process, so its log cannot be read",
                field="url",
            )
        return await log_of(storage, queue)


def lines(checked: CheckResult, seconds: float) -> Iterable[str]:
    """Yield the lines of a readable report."""
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
