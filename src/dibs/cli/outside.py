"""Verbs that live in other packages: found by name, imported to be run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from dibs.cli.refusals import WrongWords

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

#: Each entry point is a command of click's, named as it is typed.
GROUP: Final = "dibs.commands"


def origins() -> dict[str, str]:
    """Return each verb that an installed package brings, and the name of the package."""
    return {point.name: _package(point) for point in _points()}


def load(name: str, extra: str) -> click.Command:
    """Import a verb. Raises WrongWords that say what to install; `extra` is ours that would bring it."""
    for point in _points():
        if point.name == name:
            try:
                command = point.load()
            except ImportError as error:
                missing = error.name or "a module"
                raise WrongWords(
                    f"{name} needs {missing}, which is not installed: {_install(extra)}"
                ) from error
            if not isinstance(command, click.Command):
                raise WrongWords(f"{name} of {_package(point)} is not a command of click's: {point.value}")
            return command
    raise WrongWords(f"{name} is not installed: {_install(extra)}")


def _points() -> EntryPoints:
    # Imported where it is asked: it reads mail, of all things, and our own verbs need none of it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group=GROUP)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _install(extra: str) -> str:
    return f"pip install 'dibs[{extra}]'" if extra else "install the package it comes from with its extras"
