"""L2, threads and processes: many short examples that must be explained, and long runs that are recorded."""

from __future__ import annotations

from dataclasses import replace

from dibs_conformance.concurrent.levels import at_once
from dibs_conformance.history.free_run import free_run
from dibs_conformance.levels.adding import joined
from dibs_conformance.levels.level import Given
from dibs_conformance.report import Findings

#: A long run holds about as many calls as so many short examples.
SHORT_FOR_LONG = 50


def threads_and_processes(given: Given) -> Findings:
    """Half of the budget for each; the first failure ends it."""
    half = replace(given, budget=given.budget / 2)
    short = at_once(half)
    if short.failures:
        return short
    runs = None if given.examples is None else max(1, given.examples // SHORT_FOR_LONG)
    return joined(short, free_run(replace(half, examples=runs)))
