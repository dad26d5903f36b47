"""Plant a bug by an edit of the text of a module, for one test."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

import pytest


def plant(patch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Replace a text of a module, which must occur once, in its functions and its constants.

    The function objects stay and get the edited code, because other modules have imported them.
    """
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__}: the text to be replaced is gone: {old!r}"
    edited = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), edited.__dict__)
    functions = dict(functions_of(edited))
    for name, function in functions_of(module):
        if is_changed(function, functions[name]):
            patch.setattr(function, "__code__", functions[name].__code__)
    for name, value in vars(module).items():
        if name.isupper() and value != vars(edited).get(name, value):
            patch.setattr(module, name, vars(edited)[name])


def functions_of(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions and methods that a module defines, by name."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield name, value
        elif isinstance(value, type):
            for method_name, method in vars(value).items():
                function = as_function(method)
                if function is not None and function.__module__ == module.__name__:
                    yield f"{name}.{method_name}", function


def as_function(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    elif isinstance(value, classmethod | staticmethod):
        value = value.__func__
    return value if isinstance(value, FunctionType) else None


def is_changed(old: FunctionType, new: FunctionType) -> bool:
    return old.__code__ != new.__code__ and old.__code__.co_freevars == new.__code__.co_freevars
