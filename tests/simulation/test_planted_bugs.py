"""The simulation finds bugs that are planted in workers, clients, flows and supervisors."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
import pytest

from dibs_conformance.simulation.command import CHILD, run_child
from dibs_conformance.simulation.simulation import Options, Result
from tests.simulation.planting import BUGS, PlantedBug

pytestmark = pytest.mark.long

OPTIONS: Final = Options(seed=1, hours=0.1, workers=3, producers=2, pause=5.0)
FOUND: Final = [bug for bug in BUGS if bug.seed is not None]


@pytest.mark.parametrize("bug", FOUND, ids=[bug.name for bug in FOUND])
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    result = run_with_bug(bug.name, msgspec.structs.replace(OPTIONS, seed=bug.seed))

    assert bug.clause == result.clause


@pytest.mark.parametrize("seed", sorted({bug.seed for bug in FOUND if bug.seed is not None}))
def test_without_a_bug_these_seeds_keep_every_promise(seed: int) -> None:
    result = run_child(msgspec.structs.replace(OPTIONS, seed=seed))

    assert ("", "") == (result.clause, result.what)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_text_of_a_bug_occurs_once(bug: PlantedBug) -> None:
    spec = find_spec(bug.module)

    assert spec is not None
    assert spec.origin is not None
    assert 1 == Path(spec.origin).read_text("utf-8").count(bug.old)


def run_with_bug(name: str, options: Options) -> Result:
    environment = os.environ | {
        CHILD: msgspec.json.encode(options).decode(),
        "PYTHONHASHSEED": str(options.seed),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.planting", name],
        env=environment, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Result)
