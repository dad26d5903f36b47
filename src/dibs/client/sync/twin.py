"""Makes the blocking forms of the methods of async handles.

    class BlockingQueue(BlockingHandle[Queue]):
        pause: Final = blocking(Queue.pause)

A type checker sees the parameters of `Queue.pause` and its awaited result, and `help()` shows its docstring
with the examples in their blocking form. `tests/client/test_app.py` compares the members of both handles.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, overload

from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.sync.background_loop import iterate, run

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., Any])

#: Handle -> the variable that stands for it in error messages, where it is not the class name in lower case.
_VARIABLES: Final = {
    "StoredFlow": "flow",
    "StoredBatch": "batch",
    "Dibs": "app",
    "TaskEnqueuer": "task",
    "StoredQueue": "queue",
    "Schedules": "queue.schedules",
}


class Method(Generic[P, T]):
    """The type of a blocking method. At run time it is a function."""

    def __get__(self, handle: object, owner: Any = None) -> Callable[P, T]:
        raise NotImplementedError


class Attribute(Generic[T]):
    """The type of an attribute that a blocking handle reads from its async handle. It is a property."""

    def __get__(self, handle: object, owner: Any = None) -> T:
        raise NotImplementedError


class BlockingHandle(Generic[S]):
    """A handle with blocking methods. Each call runs on the event loop where the storage is open."""

    def __init__(self, source: S) -> None:
        self._source = source
        owner: Any = source
        self._storage_handle: StorageHandle = (
            owner._client.storage_handle if hasattr(owner, "_client") else owner._storage_handle
        )

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"


class BlockingContext(BlockingHandle[S]):
    """A handle for `with`, whose async form is a handle for `async with`."""

    def __enter__(self) -> Self:
        source: Any = self._source
        run(self._storage_handle, "async with", source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        source: Any = self._source
        run(self._storage_handle, "async with", source.__aexit__(kind, error, trace))


@overload
def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, runner: Callable[..., Any] = run
) -> Method[P, T]: ...
@overload
def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    convert: Callable[[T], B],
    *,
    runner: Callable[..., Any] = run,
) -> Method[P, B]: ...
def blocking(method: Any, convert: Any = None, *, runner: Callable[..., Any] = run) -> Any:
    """Return the blocking form of an async method; `convert` makes the blocking form of its result.

    `runner` is a function of background_loop.py, for calls that the thread of the caller runs or helps with.
    """
    form = f"await {_variable(method)}.{method.__name__}(...)"

    def wait(self: Any, source_call: Any) -> Any:
        return runner(self._storage_handle, form, source_call)

    return _forward(method, wait, convert)


def iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Method[P, Iterator[T]]:
    """Return the form of an async generator for `for`."""
    form = f"async for ... in {_variable(method)}.{method.__name__}(...)"

    def wait(self: Any, items: Any) -> Any:
        return iterate(self._storage_handle, form, items)

    return cast("Method[P, Iterator[T]]", _forward(method, wait, None))


@overload
def passing(method: Callable[Concatenate[Any, P], T]) -> Method[P, T]: ...
@overload
def passing(method: Callable[Concatenate[Any, P], T], convert: Callable[[T], B]) -> Method[P, B]: ...
def passing(method: Any, convert: Any = None) -> Any:
    """Return the form of a method that is not async; `convert` makes the blocking form of its result."""
    return _forward(method, lambda _self, result: result, convert)


def reads(name: str, convert: Callable[[Any], Any] | None = None) -> Any:
    """Return a property that reads an attribute of the async handle, so it is always current."""

    def read(self: Any) -> Any:
        value = getattr(self._source, name)
        return value if convert is None else convert(value)

    return property(read, doc=f"The attribute `{name}` of the async handle.")


def each(convert: Callable[[T], B]) -> Callable[[Iterable[T]], Sequence[B]]:
    """Return a function that converts each item of a sequence."""
    return lambda items: [convert(item) for item in items]


def _forward(method: Any, wait: Callable[[Any, Any], Any], convert: Any) -> Any:
    name = method.__name__

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = wait(self, getattr(self._source, name)(*args, **kwargs))
        return result if convert is None else convert(result)

    return documented_as(method)(call)


def documented_as(method: Any) -> Callable[[F], F]:
    """Give a function the docstring of an async method, with its examples in their blocking form."""

    def document(function: F) -> F:
        text = re.sub(r"\basync (with|for)\b", r"\1", method.__doc__ or "")
        function.__doc__ = text.replace("await ", "")
        return function

    return document


def _variable(method: Any) -> str:
    owner: str = method.__qualname__.partition(".")[0]
    return _VARIABLES.get(owner, owner.lower())
