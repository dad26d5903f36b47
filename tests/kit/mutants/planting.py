"""The mutants, and the two ways to plant one: replace a function, or replace a line of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from attrs import frozen

Patch = pytest.MonkeyPatch
Where = Literal["memory", "file", "redis", "postgres"]


@frozen
class Mutant:
    """One planted bug. `breaks` names the law of the kit, or the rule of the contract, that it breaks."""

    name: str
    where: Where
    breaks: str
    plant: Callable[[Patch], None]
    #: The kit must find the bug within this number of examples.
    examples: int = 300
    #: True if it was written from the contract, without the code of the kit.
    by_contract: bool = False
    #: The reason why L0 cannot find the bug; empty for all others.
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
    """Patch a function so that its result passes through `change(result, *arguments)`."""
    original = getattr(owner, name)

    def mutant(*args: Any, **named: Any) -> Any:
        return change(original(*args, **named), *args)

    patch.setattr(owner, name, mutant)


def rewritten(texts: Mapping[str, str], file: str, old: str, new: str) -> dict[str, str]:
    """Return the texts with one line of one of them replaced. The line must occur exactly once."""
    assert texts[file].count(old) == 1, f"{file}: the line to be replaced is gone: {old!r}"
    return {**texts, file: texts[file].replace(old, new)}
