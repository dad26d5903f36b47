"""From the scheme of a URL to the storage that serves it. A storage is imported when first opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl

from dibs.errors import ConfigurationError, UnknownOption, UnknownScheme
from dibs.storage.protocol import Clock, Storage

if TYPE_CHECKING:
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
    if target := OURS.get(scheme):
        module, _, name = target.partition(":")
        return cast("Factory", getattr(import_module(module), name))
    for point in _registered():
        if point.name == scheme:
            return cast("Factory", point.load())
    raise UnknownScheme(
        f"no storage is known for {scheme}:; known: {known()}. A storage of someone else's comes with a "
        f"package that registers {scheme!r} in the entry-point group {ENTRY_POINTS!r}: install it"
    )


async def remove(url: str) -> None:
    """Remove a place with everything in it, where its storage offers that: `remove_url` beside its factory.

    For those who make places of their own, as the kit and tests do. Elsewhere it does nothing.
    """
    module = import_module(factory(scheme_of(url)).__module__.rpartition(".")[0])
    remove_url = getattr(module, "remove_url", None)
    if remove_url is not None:
        await remove_url(url)


def _registered() -> EntryPoints:
    from importlib.metadata import entry_points  # noqa: PLC0415 - 12 ms of import that our own schemes spare

    return entry_points(group=ENTRY_POINTS)


def known() -> str:
    """Return the schemes that can be opened here, for a message."""
    names = {*OURS, *(point.name for point in _registered())}
    return ", ".join(f"{name}:" for name in sorted(names))


def split_options(url: str, allowed: dict[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """Return a URL without its query, and the query as options, each read by its function in `allowed`."""
    place, _, query = url.partition("?")
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        read = allowed.get(name)
        if read is None:
            raise UnknownOption(f"unknown option {name!r}; known: {', '.join(sorted(allowed)) or 'none'}")
        try:
            options[name] = read(text)
        except ValueError:
            raise UnknownOption(f"option {name!r} cannot be read from {text!r}") from None
    return place, options


def read_flag(text: str) -> bool:
    """Read a yes or no from a URL."""
    word = text.lower()
    if word in ("1", "true", "yes", "on", ""):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)
