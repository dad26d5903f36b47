"""The reference "module:name" by which a child process imports the application."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from dibs.app import Dibs
from dibs.errors import ConfigurationError, DibsError
from dibs.model.error_text import summarize_exception
from dibs.storage.monkey_patches import eventlet_has_patched, gevent_has_patched


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


#: The references that this process is importing now, innermost last.
_importing: Final[list[str]] = []


def is_importing_app() -> bool:
    """Return whether this process is inside `import_app`."""
    return bool(_importing)


def import_app(reference: str) -> Dibs:
    """Import the application at "module:name".

    Raise ConfigurationError if it is not there, or if the module raises an error while it is imported.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not name:
        raise ConfigurationError(
            f"{reference!r} is not a reference to an application; write it as package.module:app"
        )
    value: Any = _import_module(module_name)
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Dibs):
        raise ConfigurationError(
            f"{module_name} has no application {name!r}; if it is made under the __main__ guard or in a "
            "function, move it to the top of the module"
        )
    return value


def _import_module(name: str) -> ModuleType:
    _importing.append(name)
    try:
        return import_module(name)
    except DibsError:
        raise
    except (Exception, SystemExit) as error:  # importing runs the user's code
        missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        hint = "; check the name, and that sys.path has its directory" if missing else ""
        reason = summarize_exception(error) if missing else describe_error(error)
        raise ConfigurationError(f"cannot import {name}: {reason}{hint}") from error
    finally:
        _importing.pop()


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with the file and line that raised it; a DibsError is only its message."""
    if isinstance(error, DibsError):
        return str(error)
    line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, SyntaxError):
        return f"{line} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{line} ({frames[-1].filename}:{frames[-1].lineno})" if frames else line


def check_threads() -> None:
    """Raise ConfigurationError if gevent or eventlet has patched the threads of this process.

    A handler that computes would stop a patched process with its event loop, its timeouts and its lease.
    """
    library = "gevent" if gevent_has_patched() else "eventlet" if eventlet_has_patched() else ""
    if library:
        raise ConfigurationError(
            f"{library} has patched the threads of this process, and a worker needs real threads: patch in "
            "the module that starts the web server, not in a module that the application's module imports"
        )


def check_handlers(app: Dibs, reference: str, queues: tuple[str, ...]) -> None:
    """Check an application that a child process imported.

    Raise ConfigurationError if it lacks handlers of `queues`, or has patched the threads of the process.
    """
    check_threads()
    missing = [queue for queue in queues if queue not in app.handlers]
    if missing:
        raise ConfigurationError(
            f"imported in a worker process, {reference} has no handler for {', '.join(missing)}: define the "
            "handler at the top of a module that the application's module imports, not under the "
            "__main__ guard"
        )
