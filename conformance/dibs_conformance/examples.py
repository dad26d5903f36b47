"""Runs the machine: many examples, in chunks that end when the budget is used up, from one seed."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from dibs_conformance.laws import Broken
from dibs_conformance.numbering import Differs
from dibs_conformance.report import Failure
from dibs_conformance.scenarios import Scenarios
from dibs_conformance.tour import take_tour
from dibs_conformance.trial import Progress, Trial
from dibs_conformance.unfinished import missing

#: Examples between two looks at the clock. Each chunk has a seed of its own, made from the first.
CHUNK = 25


def run_examples(
    trial: Trial,
    *,
    first_seed: int,
    examples: int | None,
    budget: float,
    steps: int,
    progress: Progress = lambda _: None,
    shrink: bool = True,
) -> Failure | None:
    """Run `examples`, or as many as fit into `budget` seconds; the first failure, shrunk, ends it."""
    end = time.monotonic() + budget
    done = 0
    while (examples is None or done < examples) and (examples is not None or time.monotonic() < end):
        size = CHUNK if examples is None else min(CHUNK, examples - done)
        failure = run_chunk(trial, first_seed + done, size, steps, shrink=shrink)
        if failure is not None:
            return failure
        done += size
        progress(done)
    return None


def run_tour(trial: Trial) -> Failure | None:
    """The fixed histories that meet every law once."""
    return caught(trial, lambda: take_tour(trial))


def run_chunk(trial: Trial, chunk_seed: int, size: int, steps: int, *, shrink: bool) -> Failure | None:
    machine = seed(chunk_seed)(type("Example", (Scenarios,), {"trial": trial}))
    chosen = how(size, steps, shrink=shrink)
    return caught(trial, lambda: run_state_machine_as_test(machine, settings=chosen))


def caught(trial: Trial, play: Callable[[], None]) -> Failure | None:
    try:
        play()
    except Exception as error:  # noqa: BLE001 - whatever a storage raises is its failure
        story = tuple(trial.judges.story.lines())
        return missing(error, story) or Failure(law=name_of(error), why=str(error), story=story)
    return None


def how(size: int, steps: int, *, shrink: bool) -> settings:
    return settings(
        max_examples=size,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def name_of(error: Exception) -> str:
    if isinstance(error, Broken):
        return error.law
    return "the contract's answer" if isinstance(error, Differs) else type(error).__name__
