"""Tries a mutated storage in a process of its own and prints the verdict as JSON; a child of `runs`.

python -m tests.mutation.certify_tree URL LEVEL BUDGET SEED EXAMPLES [MODULE]

Imports MODULE, runs the levels of the kit and probes the capabilities, until the first failure. The probes of
capabilities come after L0, because they start processes and find few mutants. With EXAMPLES 0, as many
histories run as fit into BUDGET seconds. A failure is not shrunk: only its law is of interest.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from functools import partial
from typing import Final

import msgspec

from dibs.storage.capabilities import Capabilities
from dibs_conformance.certification import levels_up_to, run_level
from dibs_conformance.concurrent import levels as concurrent_levels
from dibs_conformance.loop_runner import LIMITS, LoopRunner, without_exits
from dibs_conformance.report.values import false_claims
from dibs_conformance.sequential import levels as sequential_levels
from dibs_conformance.sequential.capabilities import probe_capabilities
from dibs_conformance.sequential.levels import run_examples
from dibs_conformance.target import LevelPlan, Locations
from tests.mutation.verdict import Verdict, failed_verdict

#: Seconds in which a call must return. Most calls take some milliseconds.
CALL_SECONDS: Final = 30.0
#: Seconds in which a test of many calls must return.
TEST_SECONDS: Final = 300.0


def main(url: str, level: str, budget: str, seed: str, examples: str, module: str = "") -> None:
    logging.getLogger("dibs.storage").setLevel(logging.ERROR)
    stop_at_first_failure()
    verdict = verdict_on(url, level, budget, seed, examples, module)
    sys.stdout.write(f"\n{msgspec.json.encode(verdict).decode()}\n")


def stop_at_first_failure() -> None:
    """Switch the search for shorter failures off, and let hanging calls fail sooner."""
    concurrent_levels.SHRINK_SECONDS = 0.0
    sequential_levels.run_examples = partial(run_examples, shrink=False)
    LIMITS.call, LIMITS.test = CALL_SECONDS, TEST_SECONDS


def verdict_on(url: str, level: str, budget: str, seed: str, examples: str, module: str) -> Verdict:
    try:
        if module:
            importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        return Verdict("not valid", note=f"{type(error).__name__}: {error}"[:300])
    locations = Locations(url)
    try:
        with without_exits():
            return first_failure(locations, level, float(budget), int(seed), int(examples) or None)
    except BaseException as error:  # noqa: BLE001 - an exception that leaves the kit also finds the mutant
        return failed_verdict("", type(error).__name__, str(error))
    finally:
        locations.remove_all()


def first_failure(
    locations: Locations, level: str, budget: float, seed: int, examples: int | None
) -> Verdict:
    """Return the first failure with its level, or "survived" with the number of histories."""
    claims = asyncio.run(read_claims(locations))
    names = levels_up_to(level)
    plan = LevelPlan(
        locations=locations, claims=claims, seed=seed, budget=budget / len(names), examples=examples
    )
    histories = 0
    for name in names:
        report = run_level(name, plan)
        if report.failures:
            return failed_verdict(name, report.failures[0].law, report.failures[0].why)
        if not report.histories:
            return Verdict("killed", f"{name} is not reached", "; ".join(gap.why for gap in report.untested))
        if name == "L0" and (wrong := wrong_claims(locations)):
            return failed_verdict("L0", "capabilities", wrong)
        histories += report.histories
    return Verdict("survived", note=f"ran up to {level}, {histories} histories")


async def read_claims(locations: Locations) -> Capabilities:
    async with locations.open(locations.new(), "system") as storage:
        return storage.capabilities


def wrong_claims(locations: Locations) -> str:
    """Return the capabilities that are claimed and not found, or ""."""
    runner = LoopRunner()
    try:
        _, _, found = runner.run(probe_capabilities(locations), LIMITS.test)
    finally:
        runner.close()
    return "; ".join(f"{claim.law}: {claim.why}" for claim in false_claims(tuple(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
