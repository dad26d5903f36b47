"""A bug planted in SQL must change a statement that runs: no later migration may replace its function."""

from __future__ import annotations

import pytest

from dibs.storage.postgres.queries import migrations
from tests.kit.mutants.sql import IN_LINE, LINES
from tests.mutation.sql_edits import defined_functions


def replacements(file: str, line: str) -> list[str]:
    """Return the later migrations that define the function with this line again."""
    (text,) = (one.text for one in migrations() if one.name == file)
    at = text.index(line)
    holders = {name for name, start, end in defined_functions(text) if start <= at < end}
    return [
        one.name
        for one in migrations()
        if one.name > file and holders & {name for name, _, _ in defined_functions(one.text)}
    ]


@pytest.mark.parametrize("name", [*LINES, *IN_LINE])
def test_no_later_migration_replaces_the_function(name: str) -> None:
    _, file, line, _ = (LINES | IN_LINE)[name]

    assert [] == replacements(file, line)
