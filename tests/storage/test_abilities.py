"""`ability` finds the optional protocols of a storage, and the reference lists all of them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from dibs import open_storage
from dibs.storage import abilities
from dibs.storage.abilities import Compaction, Diagnosis, DirectEnqueue, LockWaits, ability
from dibs.storage.protocol import READS, VERBS, Storage

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "storage.md"
PROTOCOLS = [
    kind.__name__
    for _, kind in inspect.getmembers(abilities, inspect.isclass)
    if getattr(kind, "_is_protocol", False) and kind.__module__ == abilities.__name__
]


class Wrapper:
    """A storage around another one, as tests and applications write them."""

    def __init__(self, storage: object) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def test_a_storage_has_the_abilities_whose_methods_it_has(tmp_path: Path) -> None:
    storage: Any = open_storage(f"file:{tmp_path}")

    assert ability(storage, Diagnosis) is storage
    assert ability(storage, DirectEnqueue) is None


def test_calls_do_not_bypass_a_wrapper() -> None:
    storage: Any = open_storage("postgresql://localhost/jobs")
    wrapper: Any = Wrapper(storage)

    assert ability(storage, LockWaits) is storage
    assert ability(wrapper, LockWaits) is None
    assert ability(wrapper, DirectEnqueue) is None
    assert ability(wrapper, Compaction) is wrapper


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_reference_lists_each_ability(name: str) -> None:
    assert f"| `{name}` |" in PAGE.read_text("utf-8")


def test_the_verbs_with_deadlines_are_those_of_the_protocol() -> None:
    assert READS < VERBS
    assert "wait" not in VERBS
    assert {"enqueue", "finish", "get", "import_"} <= VERBS
    assert all(inspect.iscoroutinefunction(getattr(Storage, name)) for name in VERBS)
