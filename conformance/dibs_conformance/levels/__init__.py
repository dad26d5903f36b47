"""The levels, lowest first: what each is called, and the function that runs it. A level is added here."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from dibs_conformance.levels.level import Given as Given
from dibs_conformance.levels.level import Run as Run
from dibs_conformance.levels.level import law_report as law_report
from dibs_conformance.levels.level import verdict as verdict
from dibs_conformance.levels.sequence import in_order
from dibs_conformance.report import Findings


def at(where: str) -> Run:
    """Run a level that is imported only then: its room builds on this one."""

    def run(given: Given) -> Findings:
        module, _, name = where.partition(":")
        return cast("Run", getattr(import_module(module), name))(given)

    return run


#: What each level asks, in a few words.
TITLES: Final = {
    "L0": "one call at a time",
    "L1": "calls interleaved",
    "L2": "threads and processes",
    "L3": "clients that die",
    "L4": "servers that fail",
}

#: How each is run. A storage reaches a level when it reaches all of those below as well.
RUNS: Final[dict[str, Run]] = {
    "L0": in_order,
    "L1": at("dibs_conformance.concurrent.levels:interleaved"),
    "L2": at("dibs_conformance.levels.several:threads_and_processes"),
    "L3": at("dibs_conformance.crashes.levels:clients_that_die"),
    "L4": at("dibs_conformance.faults.levels:servers_that_fail"),
}
