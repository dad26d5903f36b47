"""Types a verb of the kit, without the rest of the command line."""

from __future__ import annotations

from collections.abc import Callable

import typer
from typer.testing import CliRunner, Result


def said(verb: Callable[..., None], *words: str, typed: bytes = b"") -> Result:
    app = typer.Typer()
    app.command()(verb)
    return CliRunner().invoke(app, [*words], input=typed)
