"""The output of benchmarks: tables on the console, and JSON files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console

#: Columns of a table in a file or a pipe, wide enough to cut no text.
WIDTH_WITHOUT_TERMINAL: Final = 10_000


def open_console() -> Console:
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def write_json(path: Path | None, document: Any) -> None:
    """Write the document to the file of `--json`, if the option was given."""
    if path:
        path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
