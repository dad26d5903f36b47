"""From the scheme of a URL to the storage that serves it. A storage is imported when first opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from dibs.errors import ConfigurationError, UnknownOption, UnknownScheme
from dibs.storage.protocol import Clock, Storage

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from importlib.metadata import EntryPoints

#: Our own; others register a factory in this group of entry points, named as the scheme.
ENTRY_POINTS: Final = "dibs.storages"
OURS: Final = {
    "memory": "dibs.storage.memory:open_url",
    "file": "dibs.storage.file:open_url",
    "redis": "dibs.storage.redis:open_url",
    "rediss": "dibs.storage.redis:open_url",
    "unix": "dibs.storage.redis:open_url",
    "redis+cluster": "dibs.storage.redis:open_url",
    "postgresql": "dibs.storage.postgres:open_url",
    "postgres": "dibs.storage.postgres:open_url",
}

#: A factory takes the URL, the clock and the storage's own options.
Factory = Callable[..., Storage]


def open_storage(url: str, clock: Clock = "system", **options: Any) -> Storage:
    """Return the storage at a URL, to be entered with `async with`.

    Options may stand in the URL's query or be given by name. Raises UnknownScheme, UnknownOption.
    """
    if clock not in ("system", "manual"):
        raise ConfigurationError(f"clock is {clock!r}; it must be 'system' or 'manual'")
    return factory(scheme_of(url))(url, clock=clock, **options)


def scheme_of(url: str) -> str:
    """Return the scheme of a storage URL, in lower case."""
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme:
        # The text may be a password typed in the wrong place: it is not repeated.
        raise UnknownScheme(f"a storage URL begins with a scheme, as in file:./jobs; known: {known()}")
    return scheme.lower()


def factory(scheme: str) -> Factory:
    """Return what opens storages of a scheme."""
    module, name = _target(scheme)
    return cast("Factory", attrgetter(name)(import_module(module)))


def _target(scheme: str) -> tuple[str, str]:
    """Return where the factory of a scheme is: its module, and its name there."""
    if target := OURS.get(scheme):
        module, _, name = target.partition(":")
        return module, name
    for point in _registered():
        if point.name == scheme:
            return point.module, point.attr
    raise UnknownScheme(
        f"no storage is known for {scheme}:; known: {known()}. A storage of someone else's comes with a "
        f"package that registers {scheme!r} in the entry-point group {ENTRY_POINTS!r}: install it"
    )


def beside(url: str, name: str) -> str | None:
    """Return the URL of a place of one's own, of this name, on the same server or in the same folder.

    For those who make places of their own, as the kit does: `place_url(url, name)` beside a storage's
    factory. None where the storage offers none.
    """
    place_url = _beside_factory(url, "place_url")
    return None if place_url is None else str(place_url(url, name))


async def remove(url: str) -> None:
    """Remove a place with everything in it: `remove_url(url)` beside a storage's factory.

    Where there is none it does nothing.
    """
    remove_url = _beside_factory(url, "remove_url")
    if remove_url is not None:
        await remove_url(url)


def connect(url: str) -> AbstractAsyncContextManager[Any] | None:
    """Return a connection of the caller's own to the server of a place: `connect_url(url)`, as above.

    Where a storage joins the caller's transactions, the kit tries it with this: the connection has
    `commit()` and `rollback()` to await, and begins a transaction by itself. None where there is none.
    """
    connect_url = _beside_factory(url, "connect_url")
    return None if connect_url is None else cast("AbstractAsyncContextManager[Any]", connect_url(url))


def _beside_factory(url: str, name: str) -> Callable[..., Any] | None:
    module, _ = _target(scheme_of(url))
    return getattr(import_module(module), name, None)


def with_option(url: str, name: str, value: str) -> str:
    """Return a URL with one option of its query set."""
    address, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith(f"{name}=")]
    return f"{address}?{'&'.join([*kept, f'{name}={value}'])}"


def _registered() -> EntryPoints:
    from importlib.metadata import entry_points  # noqa: PLC0415 - 12 ms of import that our own schemes spare

    return entry_points(group=ENTRY_POINTS)


def known() -> str:
    """Return the schemes that can be opened here, for a message."""
    names = {*OURS, *(point.name for point in _registered())}
    return ", ".join(f"{name}:" for name in sorted(names))


def read_options(
    url: str, allowed: dict[str, Callable[[str], Any]], named: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return a URL without its query, and its options: the query's, each read by its function in `allowed`,

    and over them those given by name, as they are. Raises UnknownOption for any other.
    """
    for name in named:
        _check_option(name, allowed)
    from urllib.parse import parse_qsl  # noqa: PLC0415 - brings addresses and all: only who opens a storage

    place, _, query = url.partition("?")
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        _check_option(name, allowed)
        try:
            options[name] = allowed[name](text)
        except ValueError:
            raise UnknownOption(f"option {name!r} cannot be read from {text!r}") from None
    return place, {**options, **named}


def _check_option(name: str, allowed: Collection[str]) -> None:
    if name not in allowed:
        raise UnknownOption(f"unknown option {name!r}; known: {', '.join(sorted(allowed)) or 'none'}")


def read_flag(text: str) -> bool:
    """Read a yes or no from a URL."""
    word = text.lower()
    if word in ("1", "true", "yes", "on", ""):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)
