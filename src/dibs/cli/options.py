"""What several verbs let be typed, said once: the place, the form of the answer, a queue, ids."""

from __future__ import annotations

import rich_click as click

url = click.option(
    "--url", metavar="URL", help="The place. Else $DIBS_URL, else url under [tool.dibs] in pyproject.toml."
)
json = click.option(
    "--json", is_flag=True, help="Print JSON for programs, as docs/reference/cli.md says."
)  # fmt: skip
queue = click.argument("queue", metavar="QUEUE", help="The queue's name.")
queues = click.argument("queues", metavar="[QUEUE...]", nargs=-1, help="All there are if left out.")
ids = click.argument("ids", metavar="ID...", nargs=-1, required=True, help="One or more ids.")
