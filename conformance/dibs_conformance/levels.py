"""The levels of a certification, lowest first. Add a new level here and to `LEVEL_TITLES` of the report."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from dibs_conformance.concurrent.levels import interleaved, unscheduled
from dibs_conformance.concurrent.process_clients import skewed_processes
from dibs_conformance.crashes.levels import clients_that_die
from dibs_conformance.faults.outages import servers_that_fail
from dibs_conformance.history.free_run import free_run
from dibs_conformance.report.values import Findings, merge_findings
from dibs_conformance.sequential.levels import one_call_at_a_time
from dibs_conformance.target import LevelPlan, RunLevel

#: The number of short examples that have about as many calls as one recorded run.
EXAMPLES_PER_RECORDED_RUN = 50


def threads_and_processes(plan: LevelPlan) -> Findings:
    """Run L2: processes with skewed clocks, then short concurrent examples and long recorded runs.

    The examples take half of the budget, the recorded runs the rest. After a failure, the rest is skipped.
    """
    skewed = skewed_processes(plan)
    if skewed.failures:
        return skewed
    half = evolve(plan, budget=plan.budget / 2)
    short = merge_findings(skewed, unscheduled(half))
    if short.failures:
        return short
    runs = None if plan.examples is None else max(1, plan.examples // EXAMPLES_PER_RECORDED_RUN)
    return merge_findings(short, free_run(evolve(half, examples=runs)))


#: The function that runs each level. A storage reaches a level only if it reaches all levels below it.
LEVELS: Final[dict[str, RunLevel]] = {
    "L0": one_call_at_a_time,
    "L1": interleaved,
    "L2": threads_and_processes,
    "L3": clients_that_die,
    "L4": servers_that_fail,
}
