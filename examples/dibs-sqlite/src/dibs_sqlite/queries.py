"""The SQL of the storage: the named queries of sql/queries.sql and the tables of sql/schema.sql."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_SECTION: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def queries() -> dict[str, str]:
    """Return the text of each query by its name."""
    _, *parts = _SECTION.split(_read("queries"))
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))


@cache
def schema() -> str:
    """Return the statements that create the tables and indexes."""
    return _read("schema")


def _read(name: str) -> str:
    return (files(__package__) / "sql" / f"{name}.sql").read_text("utf-8")
