"""The reference "module:name" by which a child process imports the application."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from dibs.client.app import Dibs
from dibs.errors import ConfigurationError


def find_reference(app: Dibs) -> str:
    """Return the reference of an application, such as "shop.jobs:app".

    Raise ConfigurationError if no imported module has the application as a global variable.
    """
    for module in _imported_modules():
        for name, value in list(vars(module).items()):
            if value is app:
                return f"{module.__name__}:{name}"
    raise ConfigurationError(
        "worker processes import the application by its name, and no module holds it: bind it at the top "
        "of a module (app = Dibs(...)), or run with processes=0"
    )


def _imported_modules() -> list[ModuleType]:
    """Return all imported modules, the main script first."""
    modules = dict(sys.modules)
    main = modules.pop("__main__", None)
    return [module for module in (main, *modules.values()) if isinstance(module, ModuleType)]


def import_app(reference: str) -> Dibs:
    """Import the application at "module:name". Raise ConfigurationError if it is not there."""
    module_name, colon, name = reference.partition(":")
    if not colon or not name:
        raise ConfigurationError(
            f"{reference!r} is not a reference to an application; write it as package.module:app"
        )
    try:
        value: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"cannot import {module_name}: {error}; check the name, and that sys.path has its directory"
        ) from error
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Dibs):
        raise ConfigurationError(
            f"{module_name} has no application {name!r}; if it is made under the __main__ guard or in a "
            "function, move it to the top of the module"
        )
    return value


def check_handlers(app: Dibs, reference: str, queues: tuple[str, ...]) -> None:
    """Raise ConfigurationError if an application that a child process imported lacks handlers of `queues`."""
    missing = [queue for queue in queues if queue not in app.handlers]
    if missing:
        raise ConfigurationError(
            f"imported in a worker process, {reference} has no handler for {', '.join(missing)}: define the "
            "handler at the top of a module that the application's module imports, not under the "
            "__main__ guard"
        )
