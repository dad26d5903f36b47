"""Compares the options that each command declares with the parameters of its function.

Type checkers cannot compare them.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import pytest

from dibs.cli import main

#: Names of click types, and the Python types of their values.
TYPES = {
    "text": str,
    "integer": int,
    "number": int,
    "float": float,
    "duration": float,
    "path": Path,
    "directory": Path,
}


def commands(name: str) -> list[click.Command]:
    """Return a command and its subcommands."""
    command = main._load_command(name)
    return [command, *(command.commands.values() if isinstance(command, click.Group) else ())]


def passed_type(param: click.Parameter) -> Any:
    """Return the type of the value that click passes for an option or argument."""
    if isinstance(param, click.Option) and param.is_flag:
        return bool
    one: Any = str if isinstance(param.type, click.Choice) else TYPES[param.type.name]
    if param.multiple or param.nargs == -1:
        return GenericAlias(tuple, (one, ...))
    return one if param.required or param.to_info_dict()["default"] is not None else one | None


def accepted_type(hint: Any) -> Any:
    """Return `str` for a Literal of texts, otherwise the hint."""
    return str if get_origin(hint) is Literal and {str} == {*map(type, get_args(hint))} else hint


@pytest.mark.parametrize("name", main.BUILT_IN)
def test_declared_options_match_the_function(name: str) -> None:
    for command in commands(name):
        assert command.callback is not None
        function = inspect.unwrap(command.callback)
        hints = {parameter: accepted_type(hint) for parameter, hint in get_type_hints(function).items()}
        parameters = inspect.signature(function).parameters.values()
        named = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"ctx"}
        passed = {param.name: passed_type(param) for param in command.params if param.expose_value}

        # A command that hands its options on, as `configure` does, takes them as **given.
        hands_on = len(parameters) > len(named) and any(one.kind is one.VAR_KEYWORD for one in parameters)
        assert {name: hints[name] for name in named} == {
            name: kind for name, kind in passed.items() if name in named or not hands_on
        }


@pytest.mark.parametrize("name", main.BUILT_IN)
def test_every_option_and_argument_has_a_help_text(name: str) -> None:
    params = [param for command in commands(name) for param in command.params]

    assert [] == [param.name for param in params if not param.to_info_dict().get("help")]
