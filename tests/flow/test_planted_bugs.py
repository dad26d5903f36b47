"""Planted bugs: each edits one place of dibs.flow, and the machine must break a law in a few examples.

The machine may find another law first than the one that a bug names. tests/flow/machine/test_laws.py has a
story for each bug, which breaks exactly that law.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Final

import pytest
from attrs import frozen
from hypothesis import settings

from dibs.flow import arguments
from dibs.flow.running import decide, ending, live_flow, node_calls
from dibs.maintenance import flow_repair
from dibs.model import wakeup
from dibs.storage.registry import open_storage
from tests.flow.machine.laws import BrokenLaw
from tests.flow.machine.machine import run_machine
from tests.flow.machine.planting import plant
from tests.flow.machine.test_random_flows import SHORT


@frozen
class Bug:
    """A text edit of a module of dibs.flow, and the law that the edit breaks."""

    name: str
    module: ModuleType
    old: str
    new: str
    breaks: str


BUGS: Final = (
    Bug(
        "an open parent counts as ended",
        decide,
        "while index >= 0 and is_ended(self.notes[parents[index]]):",
        "while index >= 0 and self.notes[parents[index]] != WAITING:",
        "a node runs after its parents",
    ),
    Bug(
        "only direct dependents are skipped",
        decide,
        "ends += [(one, SKIPPED) for one in self._dependents[number]]",
        "ends += [(one, SKIPPED) for one in self._dependents[number] if note != SKIPPED]",
        "a node runs after its parents",
    ),
    Bug(
        "one ignored edge excuses a node that others require",
        decide,
        "return number in self._tolerated and not self._dependents[number]",
        "return number in self._tolerated",
        "a flow ends as its nodes say",
    ),
    Bug(
        "a flow completes without the node that it returns",
        decide,
        "and (number == self.plan.returns or not self._is_tolerated(number))",
        "and not self._is_tolerated(number)",
        "a flow ends as its nodes say",
    ),
    Bug(
        "an evaluation reads no watched node",
        decide,
        "return list(dict.fromkeys((*self._watched_open, *self.next_reads())))",
        "return []",
        "a flow without faults needs no timer",
    ),
    Bug(
        "a cancelled node counts as completed",
        node_calls,
        '"cancelled": CANCELLED,',
        '"cancelled": COMPLETED,',
        "nodes end as the naive reading",
    ),
    Bug(
        "the outcome of an earlier run decides about a live node",
        node_calls,
        "    if slot.current is not None:\n        if slot.current.first",
        "    if slot.current is not None and slot.outcome is None:\n        if slot.current.first",
        "a retry runs failed nodes again",
    ),
    Bug(
        "a failed flow ends without its notes",
        ending,
        "if isinstance(end, Fail) and flow.state.unsaved:",
        "if False:",
        "a completed node never runs again",
    ),
    Bug(
        "a retry leaves skipped nodes as they are",
        ending,
        "reset = [note if is_completed(note) or is_open(note) else WAITING for note in notes]",
        "reset = [note if is_completed(note) or is_open(note) or note == 5 else WAITING for note in notes]",
        "nodes end as the naive reading",
    ),
    Bug(
        "a retry has the request keys of the first run",
        live_flow,
        "{self.revision}/",
        "",
        "a retry runs failed nodes again",
    ),
    Bug(
        "a cancelled flow leaves its nodes",
        ending,
        "found = await _cancel_nodes(storage, flow.plan, flow.id, flow.stamp, open_nodes)",
        "found = {}",
        "no node runs after its flow",
    ),
    Bug(
        "a flow that was cancelled as a job leaves its nodes",
        ending,
        "    await _cancel_nodes(storage, plan, id, _stamp(outcome, data), range(len(plan.nodes)))\n",
        "",
        "no node runs after its flow",
    ),
    Bug(
        "a failed node wakes no flow",
        wakeup,
        "if not isinstance(action, Complete | Fail) or",
        "if not isinstance(action, Complete) or",
        "a flow without faults needs no timer",
    ),
    Bug(
        "a wake-up never makes an evaluation earlier",
        wakeup,
        'WAKE: Final = Update(data=False, run_at="earlier")',
        'WAKE: Final = Update(data=False, run_at="later")',
        "a flow without faults needs no timer",
    ),
    Bug(
        "the maintenance takes a missing evaluation for a live one",
        flow_repair,
        "if slot.current is None]",
        "if slot.current is None and slot.outcome is not None]",
        "each flow ends",
    ),
    Bug(
        "results arrive in another order",
        arguments,
        "return list(map(value_of, argument.nodes))",
        "return list(map(value_of, sorted(argument.nodes)))",
        "results arrive in place",
    ),
)
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
