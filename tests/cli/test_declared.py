"""What a verb declares against what its function takes: no type checker sees that, so it is compared here."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import pytest

from dibs.cli import main

#: What click makes of a word -> what a function may take it as.
TYPES = {
    "text": str,
    "integer": int,
    "number": int,
    "float": float,
    "number of seconds": float,
    "path": Path,
}


def commands(verb: str) -> list[click.Command]:
    """The verb, and those below it."""
    command = main._load(verb)
    return [command, *(command.commands.values() if isinstance(command, click.Group) else ())]


def handed(param: click.Parameter) -> Any:
    """The type of what click hands over for an option or argument."""
    if isinstance(param, click.Option) and param.is_flag:
        return bool
    one: Any = str if isinstance(param.type, click.Choice) else TYPES[param.type.name]
    if param.multiple or param.nargs == -1:
        return GenericAlias(tuple, (one, ...))
    return one if param.required or param.to_info_dict()["default"] is not None else one | None


def taken(hint: Any) -> Any:
    """A choice among texts is a text."""
    return str if get_origin(hint) is Literal and {str} == {*map(type, get_args(hint))} else hint


@pytest.mark.parametrize("verb", main.OURS)
def test_what_is_declared_is_what_is_taken(verb: str) -> None:
    for command in commands(verb):
        assert command.callback is not None
        function = inspect.unwrap(command.callback)
        hints = {name: taken(hint) for name, hint in get_type_hints(function).items()}
        names = {*inspect.signature(function).parameters} - {"ctx"}

        assert {param.name: handed(param) for param in command.params} == {
            name: hints[name] for name in names
        }


@pytest.mark.parametrize("verb", main.OURS)
def test_everything_that_can_be_typed_is_explained(verb: str) -> None:
    params = [param for command in commands(verb) for param in command.params]

    assert [] == [param.name for param in params if not param.to_info_dict().get("help")]
