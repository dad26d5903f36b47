"""Runs one command of the kit, without the rest of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

if TYPE_CHECKING:
    from click import Command


def invoke(verb: Command, *words: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(verb, [*words], input=stdin)
