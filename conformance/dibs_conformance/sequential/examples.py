"""Runs random examples until the budget is spent, in chunks with one seed each.

An example is one history: a random sequence of calls, which the state machine makes with Hypothesis.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from dibs_conformance.report import LawFailure
from dibs_conformance.sequential.limit_histories import walk_through_limits
from dibs_conformance.sequential.session import BudgetSpent, ExampleSession, to_failure
from dibs_conformance.sequential.state_machine import LimitMachine
from dibs_conformance.sequential.walkthrough import walk_through, walk_through_restarts
from dibs_conformance.target import Progress

#: Number of examples with the same seed. The seeds count up from the seed of the run.
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
) -> LawFailure | None:
    """Run `examples` examples, or as many as fit into `budget` seconds.

    Return the first failure, with the shortest sequence of calls that Hypothesis found for it, or None.
    """
    session.until = time.monotonic() + budget if examples is None else math.inf
    done = 0
    while time.monotonic() < session.until and (examples is None or done < examples):
        size = CHUNK if examples is None else min(CHUNK, examples - done)
        before = session.examples
        failure = run_chunk(session, first_seed + done, size, steps, shrink=shrink)
        if failure is not None:
            return failure
        # A flaky example ends its chunk early (see `run_until_failure`), so count the examples that ran.
        done += max(1, min(size, session.examples - before))
        progress(done)
    return None


def run_walkthrough(session: ExampleSession) -> LawFailure | None:
    """Run the fixed histories that call every verb. Return the first failure, or None."""
    return run_until_failure(session, lambda: walk_through_all(session))


def walk_through_all(session: ExampleSession) -> None:
    walk_through(session)
    walk_through_limits(session)
    walk_through_restarts(session)


def run_chunk(
    session: ExampleSession, chunk_seed: int, size: int, steps: int, *, shrink: bool
) -> LawFailure | None:
    """Run `size` examples from one seed. Return the first failure, or None."""
    machine = seed(chunk_seed)(type("Example", (LimitMachine,), {"session": session}))
    chosen = hypothesis_settings(size, steps, shrink=shrink)
    return run_until_failure(session, lambda: run_state_machine_as_test(machine, settings=chosen))


def run_until_failure(session: ExampleSession, play: Callable[[], None]) -> LawFailure | None:
    """Call `play`, which runs examples, and return its failure or None.

    The contract leaves some choices to the storage: the jobs that a reap takes, or the order of a page. When
    Hypothesis replays an example and such a choice differs, other runs are active and other values can be
    drawn; Hypothesis raises Flaky. If no law was broken before, Flaky only ends the chunk. A law that was
    broken is reported, although it may hold in the replay.
    """
    session.broken = None
    try:
        play()
    except (BudgetSpent, Flaky):
        return session.broken
    except Exception as error:  # noqa: BLE001 - any exception of the storage is a failure
        return to_failure(error, session.story)
    return None


def hypothesis_settings(size: int, steps: int, *, shrink: bool) -> settings:
    """Return the settings of a chunk. Health checks are off, because calls of a storage may be slow."""
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
