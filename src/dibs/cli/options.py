"""Options, arguments and types that several commands share."""

from __future__ import annotations

from math import isnan
from typing import Any

import rich_click as click


class Number(click.IntRange):
    """An integer within bounds. Its name is for errors, where click would say "integer range"."""

    name = "number"


class Seconds(click.FloatRange):
    """A number of seconds within bounds. Refuses NaN, which click accepts within any bounds."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


url = click.option(
    "--url",
    metavar="URL",
    help="The storage, as file:./jobs or redis://localhost. "
    "Default: $DIBS_URL, else url under [tool.dibs] in pyproject.toml.",
)
json = click.option("--json", is_flag=True, help="Print JSON for programs, on one line.")
queue = click.argument("queue", metavar="QUEUE", help="Name of the queue.")
queues = click.argument(
    "queues", metavar="[QUEUE...]", nargs=-1, help="Names of queues. Default: all queues."
)
ids = click.argument("ids", metavar="ID...", nargs=-1, required=True, help="Ids of one or more jobs.")
