"""The rooms of a storage on a server: network and codec below, then wakeups, the session, and the storage."""

from __future__ import annotations

import pytest

from tests.source import Module, imports, reached, read_project

#: The rooms of a storage that each of its rooms may import.
MAY_IMPORT = {
    "network": ("keys", "network", "migrate", "queries"),
    "codec": ("codec",),
    "wakeups": ("keys", "network", "codec", "wakeups"),
    "session": ("keys", "network", "codec", "wakeups", "transactions", "vacuum", "queries"),
}


def room_of(name: str, storage: str) -> str:
    """Return the first part of a module's name below the package of the storage, "" for any other module."""
    return name.removeprefix(f"{storage}.").partition(".")[0] if name.startswith(f"{storage}.") else ""


def wrong_imports(storage: str, modules: dict[str, Module]) -> list[str]:
    return sorted(
        f"{module.name} imports {name}"
        for module in modules.values()
        if (allowed := MAY_IMPORT.get(room_of(module.name, storage))) is not None
        for wanted in imports(module)
        for name in reached(wanted, modules)
        if room_of(name, storage) not in ("", *allowed)
    )


@pytest.mark.parametrize("storage", ["dibs.storage.redis", "dibs.storage.postgres"])
def test_a_room_imports_only_the_rooms_below_it(storage: str) -> None:
    assert [] == wrong_imports(storage, read_project())
