"""Options, arguments and types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, get_args

import rich_click as click
from click.core import ParameterSource

from dibs.cli.completion import complete_queue
from dibs.client.options.arguments import duration_seconds
from dibs.errors import Refused
from dibs.model.duration_text import parse_seconds

#: The output of a command that reads: a table for people, one JSON value, or tab-separated lines.
Format = Literal["table", "json", "lines"]
FORMATS: Final = get_args(Format)

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.IntRange):
    """An integer within bounds. Its name is for errors, where click would say "integer range"."""

    name = "number"


class Seconds(click.FloatRange):
    """A duration within bounds: seconds as a number, or text such as 5m or 1h30m. The value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = self._parse_units(value, param, ctx)
        if self.min is not None and seconds < self.min:
            self.fail(f"{value!r} is too short; it must be at least {self.min:g} s.", param, ctx)
        try:
            return duration_seconds("it", seconds)
        except Refused as refused:
            self.fail(f"{value!r} is not a valid duration: {refused}.", param, ctx)

    def _describe_range(self) -> str:
        # click would write "x>=0", as if x were known.
        return ""

    def _parse_units(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_seconds("it", text)
        except ValueError:
            hint = "write seconds, or numbers with units as in 10s, 5m or 1h30m"
            self.fail(f"{text!r} is not a duration; {hint}.", param, ctx)


url = click.option(
    "--url",
    metavar="URL",
    help="The storage, as file:./jobs or redis://localhost. "
    "Default: $DIBS_URL, else url under [tool.dibs] in pyproject.toml.",
)
yes = click.option("--yes", is_flag=True, help="Do not ask; a program must pass it.")
json = click.option("--json", is_flag=True, help="Print JSON for programs, on one line.")
queue = click.argument("queue", metavar="QUEUE", help="Name of the queue.", shell_complete=complete_queue)
queues = click.argument(
    "queues",
    metavar="[QUEUE...]",
    nargs=-1,
    help="Names of queues. Default: all queues.",
    shell_complete=complete_queue,
)
ids = click.argument("ids", metavar="ID...", nargs=-1, required=True, help="Ids of one or more jobs.")


def _remember_json(ctx: click.Context, _param: click.Parameter, given: bool) -> None:  # noqa: FBT001 - a callback of click
    ctx.meta["dibs.cli.json"] = given


def _choose_output(ctx: click.Context, param: click.Parameter, output: Format) -> Format:
    if not ctx.meta["dibs.cli.json"]:
        return output
    if ctx.get_parameter_source("output") is ParameterSource.COMMANDLINE and output != "json":
        raise click.BadParameter(f"--json and --format {output} exclude each other.", ctx, param)
    return "json"


def output(function: F) -> F:
    """Add --format, and --json as its short form, to a command that reads. The parameter is `output`."""
    with_format = click.option(
        "--format",
        "output",
        type=click.Choice(FORMATS),
        metavar="FORMAT",
        default="table",
        callback=_choose_output,
        help="table for people, json for programs, or lines: tab-separated, for cut, grep and awk.",
    )
    with_json = click.option(
        "--json",
        is_flag=True,
        # Eager options are read first, so `_choose_output` knows whether --json is given.
        is_eager=True,
        expose_value=False,
        callback=_remember_json,
        help="Short for --format json.",
    )
    return with_format(with_json(function))
