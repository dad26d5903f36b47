"""Runs one command of the kit, without the rest of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

if TYPE_CHECKING:
    from click import Command


def said(verb: Command, *words: str, typed: bytes = b"") -> Result:
    return CliRunner().invoke(verb, [*words], input=typed)
