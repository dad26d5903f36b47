"""Runs the machine: many examples, until the budget is used up, in chunks from one seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from dibs_conformance.laws import LawBroken
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.report import Failure
from dibs_conformance.sequential.scenarios import Scenarios
from dibs_conformance.sequential.session import BudgetSpent, ExampleSession, Progress
from dibs_conformance.sequential.unimplemented import missing
from dibs_conformance.sequential.walkthrough import walk_through

#: So many examples have a seed of their own, made from the first.
CHUNK = 25


def run_examples(
    session: ExampleSession,
    *,
    first_seed: int,
    examples: int | None,
    budget: float,
    steps: int,
    progress: Progress = lambda _: None,
    shrink: bool = True,
) -> Failure | None:
    """Run `examples`, or as many as fit into `budget` seconds; the first failure, shrunk, ends it."""
    session.until = time.monotonic() + budget if examples is None else math.inf
    done = 0
    while time.monotonic() < session.until and (examples is None or done < examples):
        size = CHUNK if examples is None else min(CHUNK, examples - done)
        before = session.examples
        failure = run_chunk(session, first_seed + done, size, steps, shrink=shrink)
        if failure is not None:
            return failure
        # A chunk that was cut short (see `first_failure`) leaves the rest of it to the next.
        done += max(1, min(size, session.examples - before))
        progress(done)
    return None


def run_walkthrough(session: ExampleSession) -> Failure | None:
    """The fixed histories that meet every law once."""
    return first_failure(session, lambda: walk_through(session))


def run_chunk(
    session: ExampleSession, chunk_seed: int, size: int, steps: int, *, shrink: bool
) -> Failure | None:
    machine = seed(chunk_seed)(type("Example", (Scenarios,), {"session": session}))
    chosen = hypothesis_settings(size, steps, shrink=shrink)
    return first_failure(session, lambda: run_state_machine_as_test(machine, settings=chosen))


def first_failure(session: ExampleSession, play: Callable[[], None]) -> Failure | None:
    """Play; what broke, if anything did.

    Some choices are the storage's: which of several jobs a reap takes, in which order a page lists. When
    Hypothesis plays the beginning of an example again and such a choice falls otherwise, other runs are at
    hand, other things can be drawn, and it calls that flaky. It breaks no law, and ends the chunk. What did
    break one is told all the same, though it may not do so again.
    """
    session.broken = None
    try:
        play()
    except BudgetSpent:
        return None
    except Flaky:
        return None if session.broken is None else failure_of(*session.broken)
    except Exception as error:  # noqa: BLE001 - whatever a storage raises is its failure
        return failure_of(error, tuple(session.checker.story.lines()))
    return None


def failure_of(error: Exception, story: tuple[str, ...]) -> Failure:
    return missing(error, story) or Failure(law=law_name(error), why=str(error), story=story)


def hypothesis_settings(size: int, steps: int, *, shrink: bool) -> settings:
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


def law_name(error: Exception) -> str:
    if isinstance(error, LawBroken):
        return error.law
    return "the contract's answer" if isinstance(error, Mismatch) else type(error).__name__
