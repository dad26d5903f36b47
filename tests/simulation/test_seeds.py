"""A handful of seeds keeps every promise, and each seed has one history."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from dibs_conformance.simulation.command import CHILD, run_child
from dibs_conformance.simulation.simulation import Options, Result

pytestmark = pytest.mark.long

SHORT = Options(seed=1, hours=0.06, workers=4, producers=2, pause=8.0)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_seed_keeps_every_promise(seed: int) -> None:
    result = run_child(msgspec.structs.replace(SHORT, seed=seed))

    assert ("", "") == (result.clause, result.what)
    assert result.counts["ended"] > 100
    assert result.injected


def test_a_seed_has_the_same_history_in_two_processes() -> None:
    # The order of sets of text differs with PYTHONHASHSEED: the history of these seeds does not depend on it.
    options = msgspec.structs.replace(SHORT, seed=9)

    assert run_with_hashes("1", options) == run_with_hashes("2", options)


def test_another_seed_has_another_history() -> None:
    assert run_child(SHORT).digest != run_child(msgspec.structs.replace(SHORT, seed=2)).digest


def run_with_hashes(hash_seed: str, options: Options) -> tuple[str, int]:
    environment = os.environ | {
        CHILD: msgspec.json.encode(options).decode(),
        "PYTHONHASHSEED": hash_seed,
    }
    done = subprocess.run(
        [sys.executable, "-m", "dibs_conformance.simulate"],
        env=environment, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    result = msgspec.json.decode(done.stdout.splitlines()[-1], type=Result)
    return result.digest, result.events
