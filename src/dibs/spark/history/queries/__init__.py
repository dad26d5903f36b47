"""The definitions of the tables in SQL that Spark and DuckDB run unchanged.

A definition reads other definitions and the given tables by name. duckdb.sql has the functions of Spark SQL
that DuckDB lacks.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files as package_files

from dibs.spark.history.tables import numeric_columns, table_schema

_NAME = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_]+)")


@cache
def statement(name: str, *given: str, table: str = "") -> str:
    """Return one statement with the rows of the definition `name`.

    `given` are the names that the engine itself provides. Every other name that a definition reads has a
    file, which becomes a part of the statement. The result has the columns of `table`, if it is given, and
    their types of numbers: the sums of DuckDB have 128 bits.
    """
    needed = dict[str, str]()
    text = _collect(name, frozenset(given), needed)
    parts = ", ".join(f"{part} AS ({inner})" for part, inner in needed.items())
    body = f"SELECT {_columns(table)} FROM ({text}) AS found"  # noqa: S608 - texts of this folder
    return f"WITH {parts} {body}" if parts else body


def _columns(table: str) -> str:
    if not table:
        return "*"
    kinds = numeric_columns(table)
    return ", ".join(
        f"CAST(found.{name} AS {kinds[name]}) AS {name}" if name in kinds else f"found.{name}"
        for name in table_schema(table).names
    )


def definition(name: str) -> str:
    """Return the text in queries/<name>.sql, without its comments."""
    text = (package_files(__package__) / f"{name}.sql").read_text("utf-8")
    return re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE).strip()


def _collect(name: str, given: frozenset[str], needed: dict[str, str]) -> str:
    """Add the definitions that `name` reads to `needed`, each behind those that it reads itself."""
    text = definition(name)
    for other in _NAME.findall(text):
        own = re.search(rf"\b{other} AS \(", text)
        if other not in given and other not in needed and not own:
            needed[other] = _collect(other, given, needed)
    return text
