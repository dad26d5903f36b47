"""The machine breaks a law in a few examples of each bug of tests/flow/machine/test_laws.py.

The machine may find another law first than the one that a bug names.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import settings

from dibs.storage.registry import open_storage
from tests.flow.machine.laws import BrokenLaw
from tests.flow.machine.machine import run_machine
from tests.flow.machine.planting import plant
from tests.flow.machine.test_laws import BUGS, Bug
from tests.flow.machine.test_random_flows import SHORT

EXAMPLES: Final = settings(SHORT, max_examples=300, report_multiple_bugs=False)


#: The bugs that the machine finds in its first examples; `nox -s chaos` tries all of them.
QUICK: Final = frozenset(
    {"an open parent counts as ended", "one ignored edge excuses a node that others require"}
)
PARAMETERS: Final = [
    pytest.param(bug, id=bug.name, marks=() if bug.name in QUICK else pytest.mark.chaos) for bug in BUGS
]


@pytest.mark.parametrize("bug", PARAMETERS)
def test_the_machine_finds_a_planted_bug(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, bug.module, bug.old, bug.new)

    with pytest.raises(BrokenLaw):
        run_machine(lambda: open_storage(f"memory:{os.urandom(8).hex()}", clock="manual"), EXAMPLES)
