"""Random flows end as the naive reading says, on every storage."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from dibs.storage.registry import open_storage
from tests.flow.machine.machine import FlowMachine

SHORT = settings(
    max_examples=100,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


def test_random_flows_in_memory() -> None:
    run_state_machine_as_test(
        lambda: FlowMachine(lambda: open_storage(f"memory:{os.urandom(8).hex()}", clock="manual")),
        settings=SHORT,
    )
