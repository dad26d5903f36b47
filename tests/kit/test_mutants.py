"""A kit nobody tried to fool proves nothing: each planted bug must be found within a few examples."""

import pytest

from dibs_conformance.laws import LAWS
from tests.kit.mutants import MUTANTS
from tests.kit.play import play

NAMES = {law.name for law in LAWS}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the law it breaks, where it is one of the kit's, or by comparing with the oracle."""
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch)

    failure, _ = play(mutant.examples)

    assert failure is not None, f"not found in {mutant.examples} examples: breaks {mutant.breaks}"


def test_every_law_has_a_mutant_or_a_reason() -> None:
    """Laws without one: these are covered by others' mutants, or need a storage of another kind."""
    without = NAMES - {mutant.breaks for mutant in MUTANTS.values()}

    assert without == {"revisions grow", "offsets only grow"}
