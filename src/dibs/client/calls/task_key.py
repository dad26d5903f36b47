"""The option `key` of a task: the key of each job, derived from the arguments of its call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from dibs.client.options.job_keys import build_key
from dibs.errors import Refused
from dibs.model.error_text import message_of

#: Returns the key of a call, as text, a whole number or None, from its arguments.
KeyFunction = Callable[..., str | int | None]
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY_VALUES = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@frozen
class TaskKey:
    """Derives the key of a job from the arguments of a call."""

    _function_name: str
    _read: KeyFunction

    def derive(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the key of a call whose arguments fit the function. Raises Refused with the field `key`."""
        try:
            value = self._read(*args, **kwargs)
        except Exception as error:
            raise Refused(
                f"the key function of {self._function_name} raised {type(error).__name__}: "
                f"{message_of(error)}",
                field="key",
            ) from error
        try:
            return build_key(value)
        except Refused as refused:
            raise Refused(f"{self._function_name}: {refused}", field="key") from None


def build_task_key(function: Callable[..., Any], option: str | KeyFunction | None) -> TaskKey | None:
    """Return the option `key` of a task, or None without it.

    Raises Refused with the field `key` for a name that is no parameter of the task, and for a value that is
    neither a name nor a function.
    """
    if option is None:
        return None
    if isinstance(option, str):
        return TaskKey(function.__name__, _parameter_reader(function, option))
    if not callable(option) or inspect.iscoroutinefunction(option):
        raise Refused(
            f"key is {option!r:.60}; pass the name of a parameter of {function.__name__}, or a `def` "
            "function that takes its arguments",
            field="key",
        )
    return TaskKey(function.__name__, option)


def _parameter_reader(function: Callable[..., Any], name: str) -> KeyFunction:
    """Return a function that takes the arguments of a call and returns the value of one parameter."""
    signature = inspect.signature(function)
    parameter = signature.parameters.get(name)
    if parameter is None or parameter.kind in _MANY_VALUES:
        known = [known for known, one in signature.parameters.items() if one.kind not in _MANY_VALUES]
        raise Refused(
            f"key names {name!r}, which is no parameter of {function.__name__}; its parameters are "
            f"{', '.join(known) or 'none'}",
            field="key",
        )

    by_position = [known for known, one in signature.parameters.items() if one.kind in _BY_POSITION]
    index = by_position.index(name) if name in by_position else len(signature.parameters)

    def read(*args: Any, **kwargs: Any) -> Any:
        return args[index] if index < len(args) else kwargs.get(name, parameter.default)

    return read
