"""What several verbs let be typed, said once: the place, the form of the answer, a queue, ids."""

from __future__ import annotations

from math import isnan
from typing import Any

import rich_click as click


class Number(click.IntRange):
    """An integer within bounds. By its own name a mistake would be "no valid integer range"."""

    name = "number"


class Seconds(click.FloatRange):
    """A length of time within bounds. What is no number is within all of click's."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


url = click.option(
    "--url", metavar="URL", help="The place. Else $DIBS_URL, else url under [tool.dibs] in pyproject.toml."
)
json = click.option("--json", is_flag=True, help="Print JSON for programs, as docs/reference/cli.md says.")
queue = click.argument("queue", metavar="QUEUE", help="The queue's name.")
queues = click.argument("queues", metavar="[QUEUE...]", nargs=-1, help="All there are if left out.")
ids = click.argument("ids", metavar="ID...", nargs=-1, required=True, help="One or more ids.")
