"""Verifies that the public API of dibs has complete types: `python tools/verify_types.py`.

It runs `pyright --verifytypes dibs`, which reports each symbol whose type is unknown, partially unknown, or
inferred without an annotation. It exits with 1 if such a symbol is in a public package. Symbols of the
worker, the storages and the command line do not count: applications do not import them.
"""

# ruff: noqa: INP001, T201 - a script for the command line

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

#: Packages and modules that define the public API.
PUBLIC = (
    *("dibs.client", "dibs.errors", "dibs.model", "dibs.spark", "dibs.telemetry", "dibs.testing"),
    *("dibs.storage.capabilities", "dibs.storage.protocol", "dibs.storage.registry"),
)


def main() -> int:
    """Print each incomplete symbol. Return the exit code."""
    incomplete = list(incomplete_symbols(report()))
    print("\n".join(incomplete) or "The types of the public API are complete.")
    return int(bool(incomplete))


def report() -> list[dict[str, Any]]:
    """Return the symbols of dibs as pyright reports them."""
    command = [sys.executable, "-m", "pyright", "--verifytypes", "dibs", "--ignoreexternal", "--outputjson"]
    output = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if not output.stdout.startswith("{"):
        raise SystemExit(f"pyright failed: {output.stdout}{output.stderr}")
    symbols: list[dict[str, Any]] = json.loads(output.stdout)["typeCompleteness"]["symbols"]
    if not any(symbol["name"] == "dibs.app.Dibs" for symbol in symbols):
        raise SystemExit("pyright did not find the package dibs; install it with `pip install -e .`")
    return symbols


def incomplete_symbols(symbols: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each public symbol whose type is not known."""
    for symbol in symbols:
        if not symbol["isTypeKnown"] and is_public(symbol["name"]):
            reasons = " ".join(reason["message"] for reason in symbol["diagnostics"])
            yield f"{symbol['name']}: {' '.join(reasons.split())}"


def is_public(name: str) -> bool:
    return any(f"{name}.".startswith(f"{part}.") for part in PUBLIC)


if __name__ == "__main__":
    raise SystemExit(main())
