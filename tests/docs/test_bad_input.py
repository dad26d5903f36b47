"""The numbers in the table of bad input equal the rows that are tried."""

from __future__ import annotations

from collections import Counter

from tests.bad_input.calls import CALLS
from tests.bad_input.commands import COMMANDS
from tests.bad_input.declarations import DECLARATIONS
from tests.bad_input.urls import URLS
from tests.bad_input.verbs import VERBS
from tests.source import PROJECT

TABLES = {
    "queues, tasks, tickets, claims and `app.work`": CALLS,
    "the verbs of a storage": VERBS,
    "handlers, schedules and values": DECLARATIONS,
    "URLs and options": URLS,
}
#: Classes with fewer errors are counted as others.
LEAST = 4


def table_row(name: str, answers: Counter[str]) -> str:
    named = [f"{count} {answer}" for answer, count in answers.most_common() if count >= LEAST]
    others = sum(count for count in answers.values() if count < LEAST)
    return (
        f"| {name} | {answers.total()} | {', '.join([*named, *([f'{others} others'] if others else [])])} |"
    )


def test_the_table_counts_the_rows() -> None:
    page = (PROJECT / "docs/reference/errors.md").read_text("utf-8")
    expected = [
        table_row(name, Counter(f"`{row.error.__name__}`" for row in rows)) for name, rows in TABLES.items()
    ]
    expected.append(table_row("command lines", Counter(f"exit code {one.code}" for one in COMMANDS)))

    assert [] == [line for line in expected if line not in page]
