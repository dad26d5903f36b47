"""Writes the tables of types in docs/reference/values.md from tests/client/calls/type_table.py.

python tools/print_types.py           writes the tables
python tools/print_types.py --check   fails if the page is out of date
"""

# ruff: noqa: INP001 - a script that only its test imports

from __future__ import annotations

import enum
import re
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
TARGET = PROJECT / "docs" / "reference" / "values.md"
sys.path.insert(0, str(PROJECT))

from dibs import BadHandler, Dibs, JsonSerde  # noqa: E402
from dibs.client.calls.hint_support import describe  # noqa: E402
from dibs.client.calls.signature import CallSignature  # noqa: E402
from tests.client.calls.pydantic_type_table import NUMPY_ROWS, PYDANTIC_ROWS  # noqa: E402
from tests.client.calls.type_runs import by_position, make_function  # noqa: E402
from tests.client.calls.type_table import ANY_ROWS, REFUSED, ROWS, Cents, Row, Sku  # noqa: E402

SERDE = JsonSerde()
_MARKS = "<!-- types: {0} -->\n", "<!-- /types: {0} -->\n"


def page(text: str) -> str:
    """Return the page with new tables between its marks."""
    tables = {
        "hints": hint_table([*ROWS, *PYDANTIC_ROWS, *NUMPY_ROWS]),
        "any": value_table(ANY_ROWS),
        "refused": refused_table(),
    }
    for name, lines in tables.items():
        begin, end = (mark.format(name) for mark in _MARKS)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after
    return text


def hint_table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| type hint | sent | stored as JSON | arrives |"
    yield "|---|---|---|---|"
    for row in rows:
        arrives = "the same" if row.arrives is row.sent else code(show(row.arrives))
        yield f"| {code(describe(row.hint))} | {code(show(row.sent))} | {code(stored(row))} | {arrives} |"


def value_table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| sent | arrives |"
    yield "|---|---|"
    for row in rows:
        arrives = "the same" if row.arrives is row.sent else code(show(row.arrives))
        yield f"| {code(show(row.sent))} | {arrives} |"


def refused_table() -> Iterator[str]:
    yield "| type hint | error |"
    yield "|---|---|"
    for hint in REFUSED:
        try:
            Dibs("memory:").task(make_function(by_position, hint))
        except BadHandler as error:
            yield f"| {code(describe(hint))} | {str(error).replace('|', chr(92) + '|')} |"


def stored(row: Row) -> str:
    """Return the JSON of the argument in the payload."""
    call = CallSignature(make_function(by_position, row.hint))
    payload = call.encode_arguments(SERDE, (row.sent,), {}).decode()
    return payload.removeprefix('{"args":[').removesuffix('],"kwargs":{}}')


def show(value: Any) -> str:
    """Return a value as a program writes it."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if type(value) in {list, tuple}:
        inner = ", ".join(map(show, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, Sku | Cents):
        return f"{type(value).__name__}({value!r})"
    if isinstance(value, OrderedDict):
        # Python 3.11 has another repr: a list of pairs.
        return f"OrderedDict({dict(value)!r})"
    text = repr(value).replace("datetime.timezone.utc", "UTC").replace("datetime.", "")
    return re.sub(r"\b(Posix|Windows)Path", "Path", text)


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def main() -> int:
    current = TARGET.read_text("utf-8")
    text = page(current)
    if "--check" in sys.argv:
        return int(text != current)
    TARGET.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
