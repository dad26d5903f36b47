"""Functions that can be handlers, and the default names of their queues."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from dibs.errors import BadHandler

_MAIN_MODULES = ("__main__", "__mp_main__")


def check_function(function: Any) -> None:
    """Raise BadHandler for a function that a worker in another process could not import or call."""
    name = getattr(function, "__qualname__", None)
    if not inspect.isfunction(function) or name is None:
        raise BadHandler(f"{function!r} cannot be a handler; write a function with `def` or `async def`")
    if function.__name__ == "<lambda>":
        raise BadHandler(
            "a lambda cannot be a handler, because a worker could not import it; write a `def` function"
        )
    if "<locals>" in name:
        raise BadHandler(
            f"{name} is defined inside a function, so a worker cannot import it; move it to the module level"
        )
    if "." in name:
        raise BadHandler(
            f"{name} is a method, and a worker has no object for it; "
            "write a function that creates the object and calls the method"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadHandler(
            f"{name} is a generator, but a job has one result; return it, and report progress for the steps"
        )


def check_parameter_names(function: Callable[..., Any]) -> None:
    """Raise BadHandler for a parameter that `task.enqueue(...)` could not pass by name."""
    one = inspect.signature(function).parameters.get("self") if callable(function) else None
    if one is not None and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
        raise BadHandler(
            f"{function.__name__} has a parameter named 'self', which `enqueue` cannot pass, because it is "
            "a method itself; rename the parameter"
        )


def default_queue_name(function: Callable[..., Any]) -> str:
    """Return the default queue name of a function: module.function. Raises BadHandler in a notebook."""
    module = function.__module__
    if module in _MAIN_MODULES:
        module = _main_module_name(module, function.__name__)
    return f"{module}.{function.__name__}"


def _main_module_name(module: str, function: str) -> str:
    """Return the module name under which a worker imports the main program."""
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None and not spec.name.endswith("__main__"):
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        raise BadHandler(
            f'{function} is defined in a program without a file, so it has no name; pass queue="..."'
        )
    from pathlib import Path  # noqa: PLC0415 - only a program without a module name needs it

    return Path(file).stem
