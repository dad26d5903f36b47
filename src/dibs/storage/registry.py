"""The registry that finds a storage by the scheme of its URL, as `redis` in `redis://localhost`.

The module of a storage is imported when a URL with its scheme is first opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from dibs.errors import ConfigurationError, UnknownOption, UnknownScheme
from dibs.storage.addresses import check_url, show_option
from dibs.storage.protocol import Clock, Storage

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from importlib.metadata import EntryPoints

#: The group of entry points in which other packages register their storages. The name of an entry point is a
#: URL scheme, and its object a Factory.
ENTRY_POINTS: Final = "dibs.storages"
#: The factories of the storages in dibs, as `module:function`, by URL scheme.
BUILT_IN: Final = {
    "memory": "dibs.storage.memory:open_url",
    "file": "dibs.storage.file:open_url",
    "redis": "dibs.storage.redis:open_url",
    "rediss": "dibs.storage.redis:open_url",
    "unix": "dibs.storage.redis:open_url",
    "redis+cluster": "dibs.storage.redis:open_url",
    "rediss+cluster": "dibs.storage.redis:open_url",
    "redis+sentinel": "dibs.storage.redis:open_url",
    "rediss+sentinel": "dibs.storage.redis:open_url",
    "postgresql": "dibs.storage.postgres:open_url",
    "postgres": "dibs.storage.postgres:open_url",
    "django": "dibs.django:open_url",
}

#: The modules with a function `client_options`, by the package of a client or a pool.
CLIENT_PACKAGES: Final = {"redis": "dibs.storage.redis", "psycopg_pool": "dibs.storage.postgres"}

#: A function `open_url(url, *, clock, **options)` that returns a storage, not yet opened.
Factory = Callable[..., Storage]


def open_storage(url: str, clock: Clock = "system", **options: Any) -> Storage:
    """Return the storage at a URL, not yet opened; open it with `async with`.

    Options may stand in the query of the URL or be passed by name: `file:./jobs?fsync=1` or `fsync=True`.
    Raise UnknownScheme or UnknownOption.
    """
    if clock not in ("system", "manual"):
        raise ConfigurationError(f"clock is {clock!r}; it must be 'system' or 'manual'")
    return factory(parse_scheme(url))(url, clock=clock, **options)


def client_options(client: object, package: str = "") -> tuple[str, dict[str, Any]]:
    """Return the URL and the options of a storage with the connection settings of a client or a pool.

    With `package`, accept only objects of this package. Raise ConfigurationError if no storage knows the
    class of the object, or its settings cannot be used.
    """
    for base in type(client).__mro__:
        found = base.__module__.partition(".")[0]
        if found in CLIENT_PACKAGES and package in ("", found):
            url, options = import_module(CLIENT_PACKAGES[found]).client_options(client)
            return url, options
    known = (
        f"a client of {package}" if package else "a client or a pool of redis-py, or a pool of psycopg_pool"
    )
    raise ConfigurationError(
        f"an object of the class {type(client).__name__} has no known settings: pass {known}"
    )


def parse_scheme(url: str) -> str:
    """Return the scheme of a storage URL in lower case.

    Raise UnknownScheme for text without a scheme, and ConfigurationError for text with a line break.
    """
    check_url(url)
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme:
        # The message does not repeat the text, because the text may be a password.
        raise UnknownScheme(
            f"a storage URL begins with a scheme, as in file:./jobs; known: {known_schemes()}"
        )
    return scheme.lower()


def factory(scheme: str) -> Factory:
    """Import and return the factory of a scheme. Raise UnknownScheme if no storage is registered for it."""
    module, name = _find_target(scheme)
    return cast("Factory", attrgetter(name)(import_module(module)))


def _find_target(scheme: str) -> tuple[str, str]:
    """Return the module and the name of a factory, without importing it. Raise UnknownScheme."""
    if target := BUILT_IN.get(scheme):
        module, _, name = target.partition(":")
        return module, name
    for point in _registered_entry_points():
        if point.name == scheme:
            return point.module, point.attr
    raise UnknownScheme(
        f"no storage is registered for the URL scheme {scheme!r}; known: {known_schemes()}. For another "
        f"storage, install a package that registers {scheme!r} in the entry-point group {ENTRY_POINTS!r}"
    )


def temporary_url(url: str, name: str) -> str | None:
    """Return the URL of a separate storage called `name` on the same server or in the same folder.

    The conformance kit tests on such storages, so that it never touches existing jobs. A storage offers this
    with a function `temporary_url(url, name)` beside its factory. Return None if it has no such function.
    """
    function = _function_beside_factory(url, "temporary_url")
    return None if function is None else str(function(url, name))


async def remove_storage(url: str) -> None:
    """Delete a storage with all its jobs, by the function `remove_url(url)` beside its factory.

    Without such a function, delete nothing.
    """
    remove_url = _function_beside_factory(url, "remove_url")
    if remove_url is not None:
        await remove_url(url)


def connect(url: str) -> AbstractAsyncContextManager[Any] | None:
    """Return a new connection of the storage's driver, by `connect_url(url)` beside its factory.

    The conformance kit tests the capability `transactions` with it. The connection begins transactions by
    itself, and its `commit()` and `rollback()` are awaitable. Return None without such a function.
    """
    connect_url = _function_beside_factory(url, "connect_url")
    return None if connect_url is None else cast("AbstractAsyncContextManager[Any]", connect_url(url))


def find_hook(url: str, name: str) -> Callable[[str], Any] | None:
    """Return an optional function of a storage for the conformance kit; None if the storage has none.

    The functions `data_folder` and `power_loss` stand beside the factory. docs/howto/write_a_storage.md
    describes them.
    """
    return _function_beside_factory(url, name)


def _function_beside_factory(url: str, name: str) -> Callable[..., Any] | None:
    module, _ = _find_target(parse_scheme(url))
    return getattr(import_module(module), name, None)


def with_option(url: str, name: str, value: str) -> str:
    """Return the URL with one option of its query added or replaced."""
    address, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith(f"{name}=")]
    return f"{address}?{'&'.join([*kept, f'{name}={value}'])}"


def _registered_entry_points() -> EntryPoints:
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 12 ms, which built-in schemes do not need

    return entry_points(group=ENTRY_POINTS)


def known_schemes() -> str:
    """Return the known schemes for an error message, as in `file:, memory:, redis:`."""
    names = {*BUILT_IN, *(point.name for point in _registered_entry_points())}
    return ", ".join(f"{name}:" for name in sorted(names))


def read_options(
    url: str, allowed: dict[str, Callable[[str], Any]], named: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the URL without its query, and all options of a storage.

    `allowed` maps each option to the function that converts its text in the query. The options in `named`
    are values already; they replace those of the query. Raise UnknownOption for an option outside `allowed`
    and for text that cannot be converted.
    """
    for name in named:
        _check_option(name, allowed)
    from urllib.parse import parse_qsl  # noqa: PLC0415 - imports ipaddress and more, only when a storage is opened

    bare_url, _, query = url.partition("?")
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        _check_option(name, allowed, url)
        try:
            options[name] = allowed[name](text)
        except ValueError:
            raise UnknownOption(
                f"option {name!r} has the invalid value {text!r}; see the options of this storage in the docs"
            ) from None
    return bare_url, {**options, **named}


def _check_option(name: str, allowed: Collection[str], url: str = "") -> None:
    if name not in allowed:
        known = ", ".join(sorted(allowed)) or "none"
        raise UnknownOption(f"unknown option {show_option(name, url)}; known: {known}")


def check_poll(poll: object) -> None:
    """Raise ConfigurationError unless the option `poll` is a finite number of seconds above 0."""
    if isinstance(poll, bool) or not isinstance(poll, int | float) or not 0 < poll < float("inf"):
        raise ConfigurationError(f"poll is {poll!r}; it must be a number of seconds above 0")


def read_flag(text: str) -> bool:
    """Convert a flag in the query of a URL to a bool, as in `?fsync=1`. Empty text is True, as in `?fsync`.

    Raise ValueError for text other than 1, true, yes, on, 0, false, no, off.
    """
    flag = text.lower()
    if flag in ("1", "true", "yes", "on", ""):
        return True
    if flag in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def read_max_connections(value: str | int) -> int:
    """Return the value of an option `max_connections`, a whole number from 1. Raise ValueError."""
    number = int(value)
    if isinstance(value, bool | float) or number < 1:
        raise ValueError(value)
    return number
