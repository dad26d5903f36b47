"""The form that enqueues a job: its fields come from the signature of the task."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from dibs.client.task import Task
from dibs.errors import BadHandler
from dibs.web.reading.source import Source

#: Most characters of a type hint or a default that the form shows.
MAX_HINT: Final = 80


@frozen
class FormField:
    """A parameter of a task as a field of the form."""

    name: str
    #: The type hint as text.
    hint: str
    #: True if the typed text is the value; False if it is JSON.
    is_text: bool
    required: bool
    #: The default as the reader sees it; "" without one.
    default: str


@frozen
class EnqueuePage:
    """The form of a queue."""

    queue: str
    #: The fields of a task; None for a queue without a task in this app, which takes JSON.
    fields: tuple[FormField, ...] | None
    doc: str


async def read_form(source: Source, params: Mapping[str, str]) -> EnqueuePage:
    """Return the form of `queue`."""
    queue = params.get("queue", "")
    await source.storage()
    task = source.task(queue)
    fields = None if task is None else task_fields(task)
    doc = "" if task is None else (inspect.getdoc(task.function) or "").partition("\n\n")[0]
    return EnqueuePage(queue, fields, doc)


def task_fields(task: Task[Any, Any]) -> tuple[FormField, ...] | None:
    """Return a field for each parameter; None for *args or **kwargs, which need the JSON of a call."""
    parameters = inspect.signature(task.function).parameters.values()
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return None
    try:
        hints = task._call.hints  # noqa: SLF001 - a part of dibs
    except BadHandler:
        hints = {}
    return tuple(_field(one, hints.get(one.name, Any)) for one in parameters)


def _field(one: inspect.Parameter, hint: Any) -> FormField:
    required = one.default is one.empty
    return FormField(
        name=one.name,
        hint=_hint_text(hint),
        is_text=_is_text(hint),
        required=required,
        default="" if required else repr(one.default)[:MAX_HINT],
    )


def _is_text(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set(typing.get_args(hint)) == {str, type(None)}
    return hint is str


def _hint_text(hint: Any) -> str:
    if hint is Any:
        return "any JSON"
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return text.replace("typing.", "")[:MAX_HINT]
