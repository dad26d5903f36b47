"""How a process finds the application again: by the name it is bound to, in a module it can import."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from dibs.client.app import Dibs
from dibs.errors import ConfigurationError


def locate(app: Dibs) -> str:
    """Return "module:name" for an application. Raises ConfigurationError if no module holds it."""
    for module in _modules():
        for name, value in list(vars(module).items()):
            if value is app:
                return f"{module.__name__}:{name}"
    raise ConfigurationError(
        "worker processes import the application by its name, and no module holds it: bind it at the top "
        "of a module (app = Dibs(...)), or run with processes=0"
    )


def _modules() -> list[ModuleType]:
    known = dict(sys.modules)
    main = known.pop("__main__", None)
    return [module for module in (main, *known.values()) if isinstance(module, ModuleType)]


def find(reference: str) -> Dibs:
    """Import the application at "module:name". Raises ConfigurationError that says what is wrong."""
    module_name, colon, name = reference.partition(":")
    if not colon or not name:
        raise ConfigurationError(f"{reference!r} names no application; write it as package.module:app")
    try:
        value: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"cannot import {module_name}: {error}") from error
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Dibs):
        raise ConfigurationError(
            f"{module_name} has no application {name!r}; if it is made under the __main__ guard or in a "
            "function, move it to the top of the module"
        )
    return value


def check_handlers(app: Dibs, reference: str, queues: tuple[str, ...]) -> None:
    """Refuse an application that, imported anew, lacks a handler the supervisor has."""
    missing = [queue for queue in queues if queue not in app.handlers]
    if missing:
        raise ConfigurationError(
            f"imported anew, {reference} has no handler for {', '.join(missing)}: make it at the top of a "
            "module that importing the application imports too, not under the __main__ guard"
        )
