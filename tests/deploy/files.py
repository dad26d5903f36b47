"""The files of deploy/, and the check of a command line against the options of `dibs`."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]  # the package has no types

from dibs.cli.main import app
from tests.source import PROJECT

DEPLOY = PROJECT / "deploy"


def find_program(name: str, install: str = "") -> str:
    """Return the path of a program, also from the environment of this Python; skip the test without it."""
    found = shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
    if found is None:
        pytest.skip(f"{name} is not installed{install and ': '}{install}")
    return found


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def read_all_yaml(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def parse_command(words: str | Sequence[str]) -> dict[str, Any]:
    """Return the values of the options and arguments of a `dibs` command, by name, without running it.

    Raise AssertionError for another program, and click.UsageError for an unknown command, option or value.
    """
    program, *arguments = shlex.split(words) if isinstance(words, str) else words
    assert "dibs" == Path(program).name
    context, values = click.Context(app, info_name="dibs"), dict[str, Any]()
    command: click.Command = app
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        command = found
        # A group has subcommands, and its own parser would run them.
        with contextlib.ExitStack() as stack:
            if not isinstance(command, click.Group):
                context = stack.enter_context(command.make_context(name, [*arguments], parent=context))
                values = dict(context.params)
    return values
