"""Commands of other packages: found by their entry points, and imported only when they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from dibs.cli.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

#: The entry point group. The name of an entry point is the name of the command, its object a command of
#: click.
ENTRY_POINT_GROUP: Final = "dibs.commands"


def packages_by_command() -> dict[str, str]:
    """Return the command names of installed packages, each with the name of its package."""
    return {point.name: _package_name(point) for point in _entry_points()}


def load_command(name: str, extra: str) -> click.Command:
    """Import the command `name`.

    `extra` is the extra of dibs that installs the command, or "" for a command of another package. Raises
    UsageError if the command or one of its modules is not installed; the message says what to install.
    """
    for point in _entry_points():
        if point.name == name:
            try:
                command = point.load()
            except ImportError as error:
                missing = error.name or "a module"
                raise UsageError(
                    f"{name} needs {missing}, which is not installed: {_install_hint(extra)}"
                ) from error
            if not isinstance(command, click.Command):
                package = _package_name(point)
                raise UsageError(
                    f"{name} cannot run: {point.value} of package {package} is not a click command; "
                    f"report this to the authors of {package}"
                )
            return command
    raise UsageError(f"{name} is not installed: {_install_hint(extra)}")


def _entry_points() -> EntryPoints:
    # Imported here, because built-in commands do not need it, and it is slow: it imports the email package.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group=ENTRY_POINT_GROUP)


def _package_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _install_hint(extra: str) -> str:
    return f"pip install 'dibs[{extra}]'" if extra else "install the command's package with its extras"
