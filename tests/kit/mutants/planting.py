"""What a mutant is, and the two ways to plant one: a function replaced, a line of text replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from attrs import frozen

Patch = pytest.MonkeyPatch
Where = Literal["memory", "file", "redis", "postgres"]


@frozen
class Mutant:
    """One planted bug. `breaks` is the law of the kit, or the sentence of the contract, that it breaks."""

    name: str
    where: Where
    breaks: str
    plant: Callable[[Patch], None]
    #: Within so many examples it must be found.
    examples: int = 300
    #: Written from the contract alone.
    by_contract: bool = False
    #: Why the kit cannot find it; empty for all that it does find.
    survives: str = ""


MUTANTS: dict[str, Mutant] = {}

Plant = Callable[[Patch], None]


def add(mutant: Mutant) -> None:
    assert mutant.name not in MUTANTS, f"two mutants are called {mutant.name}"
    MUTANTS[mutant.name] = mutant


def breaks(
    law: str, examples: int = 300, *, where: Where = "memory", by_contract: bool = False, survives: str = ""
) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        add(Mutant(plant.__name__, where, law, plant, examples, by_contract, survives))
        return plant

    return register


def changed(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Let what a function returns go through `change(result, *arguments)`."""
    original = getattr(owner, name)

    def mutant(*args: Any, **named: Any) -> Any:
        return change(original(*args, **named), *args)

    patch.setattr(owner, name, mutant)


def rewritten(texts: Mapping[str, str], file: str, old: str, new: str) -> dict[str, str]:
    """Return texts by name with one line of one of them replaced; the line must be there, once."""
    assert texts[file].count(old) == 1, f"{file}: the line to be replaced is gone: {old!r}"
    return {**texts, file: texts[file].replace(old, new)}
