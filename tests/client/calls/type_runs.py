"""Runs of a table of types: each value is enqueued in each shape of a parameter, and a worker runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import make_dataclass
from types import FunctionType, GenericAlias
from typing import Any, Optional

from attrs import frozen

from dibs import Dibs, Serde, Task, current_job
from tests.client.calls.type_table import Row

#: The argument that each handler received last, by the name of its queue.
RECEIVED: dict[str, Any] = {}


async def by_position(value: Any) -> Any:
    RECEIVED[current_job().queue] = value
    return value


async def by_keyword(*, value: Any) -> None:
    RECEIVED[current_job().queue] = value


async def with_default(first: int = 1, value: Any = None) -> None:
    RECEIVED[current_job().queue] = value


async def many(*value: Any) -> None:
    RECEIVED[current_job().queue] = value


async def named(first: int = 1, **value: Any) -> None:
    RECEIVED[current_job().queue] = value


@frozen
class Shape:
    """A place of a type hint in a signature."""

    template: Any
    #: Returns the type hint of the parameter.
    hint: Callable[[Any], Any]
    #: Returns the argument that holds a value.
    wrap: Callable[[Any], Any]
    args: Callable[[Any], tuple[Any, ...]]
    kwargs: Callable[[Any], dict[str, Any]]
    #: Returns the value that the handler receives.
    received: Callable[[Any], Any]


def one(value: Any) -> tuple[Any, ...]:
    return (value,)


def none(_: Any) -> dict[str, Any]:
    return {}


def same(value: Any) -> Any:
    return value


def box(hint: Any) -> type:
    """Return a dataclass with a field of a type hint."""
    if (known := BOXES.get(str(hint))) is None:
        known = BOXES[str(hint)] = make_dataclass("Box", [("value", hint)])
    return known


BOXES: dict[str, type] = {}

SHAPES: dict[str, Shape] = {
    "by position": Shape(by_position, same, same, one, none, same),
    "by keyword": Shape(by_keyword, same, same, lambda _: (), lambda value: {"value": value}, same),
    "with a default": Shape(with_default, same, same, lambda _: (), lambda value: {"value": value}, same),
    "of many": Shape(many, same, same, lambda value: (value, value), none, lambda value: (value, value)),
    "named": Shape(named, same, same, lambda _: (2,), lambda value: {"a": value}, lambda value: {"a": value}),
    "in a list": Shape(
        by_position, lambda hint: GenericAlias(list, hint), lambda value: [value], one, none, same
    ),
    "in a dict": Shape(
        by_position, lambda hint: GenericAlias(dict, (str, hint)), lambda value: {"a": value}, one, none, same
    ),
    "optional": Shape(by_position, lambda hint: Optional[hint], same, one, none, same),  # noqa: UP045 - of a variable
}


@frozen
class Trial:
    """A row in a shape, declared as a task."""

    name: str
    row: Row
    shape: Shape
    task: Task[..., Any]


def declare(
    app: Dibs, serde: Serde, rows: Iterable[Row], shapes: Iterable[str] = (*SHAPES, "in a dataclass")
) -> list[Trial]:
    return [trial for at, row in enumerate(rows) for trial in declare_row(app, serde, f"{at}", row, shapes)]


def declare_row(app: Dibs, serde: Serde, prefix: str, row: Row, shapes: Iterable[str]) -> Iterator[Trial]:
    for name in shapes:
        shape = SHAPES[name] if name in SHAPES else in_a_dataclass(row)
        hint = shape.hint(row.hint)
        queue = f"{serde.name}-{prefix}-{name.replace(' ', '-')}"
        task = app.task(queue=queue, serde=serde)(make_function(shape.template, hint))
        yield Trial(f"{row.hint} {row.sent!r} {name} {serde.name}", row, shape, task)


def in_a_dataclass(row: Row) -> Shape:
    kind = box(row.hint)
    return Shape(by_position, lambda _: kind, kind, one, none, same)


def make_function(template: Any, hint: Any) -> Any:
    """Return a copy of a function, with the type hint for its parameter `value` and its result."""
    function = FunctionType(template.__code__, template.__globals__, template.__name__, template.__defaults__)
    function.__kwdefaults__ = template.__kwdefaults__
    function.__annotations__ = {"value": hint, "return": hint if template is by_position else None}
    return function


async def changed(app: Dibs, trials: list[Trial]) -> list[str]:
    """Return the trials whose value or result arrived as another one than the table says."""
    errors = []
    tickets = {}
    for trial in trials:
        value = trial.shape.wrap(trial.row.sent)
        try:
            tickets[trial.task.queue.name] = await trial.task.enqueue(
                *trial.shape.args(value), **trial.shape.kwargs(value)
            )
        except Exception as error:  # noqa: BLE001 - all errors are shown together
            errors.append(f"{trial.name}: {error!r}")
    await app.work(until="empty", queues=list(tickets), handle_signals=False)
    for trial in trials:
        if (ticket := tickets.get(trial.task.queue.name)) is not None:
            errors += [f"{trial.name}: {problem}" async for problem in problems(trial, ticket)]
    return errors


async def problems(trial: Trial, ticket: Any) -> Any:
    arrives = trial.shape.wrap(trial.row.arrives)
    wanted, got = trial.shape.received(arrives), RECEIVED.pop(trial.task.queue.name, "nothing")
    if not is_same(wanted, got):
        yield f"{got!r} arrived"
    if trial.shape.template is by_position and not is_same(arrives, result := await ticket.result(5)):
        yield f"{result!r} came back"


def is_same(wanted: Any, got: Any) -> bool:
    if type(wanted) is not type(got) or wanted != got:
        return False
    if isinstance(wanted, list | tuple):
        return all(map(is_same, wanted, got))
    return all(map(is_same, wanted.values(), got.values())) if isinstance(wanted, dict) else True
