"""Access to the files in sql/: the queries, and the script that creates the tables."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_SECTION: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """Return the text of each query in sql/queries.sql by the name in its line `-- name: NAME`."""
    _, *parts = _SECTION.split(script("queries"))
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))


@cache
def script(name: str) -> str:
    """Return the text of a file in sql/: "schema" creates the tables."""
    return (files(__package__) / "sql" / f"{name}.sql").read_text("utf-8")
