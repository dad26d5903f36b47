"""Runs one level on a storage, without the rest of a certification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dibs.storage.capabilities import Capabilities
from dibs_conformance.concurrent import levels as concert
from dibs_conformance.levels import LEVELS
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.call_text import CallRecorder
from dibs_conformance.sequential.levels import run_examples, run_until_failure, run_walkthrough
from dibs_conformance.sequential.scripts import play_history
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.sequential.walkthrough import is_compared
from dibs_conformance.target import LevelPlan, Locations, OpenStorage
from dibs_conformance.verbs import Lockstep


def play(
    examples: int,
    seed: int = 1,
    *,
    shrink: bool = False,
    target: str | OpenStorage = "memory:",
    durable: bool = False,
    walkthrough: bool = False,
) -> tuple[LawFailure | None, ExampleSession]:
    """Run examples until one fails, after the walkthrough if requested.

    `session.examples` is their number.
    """
    with open_session(target, durable=durable) as session:
        failure = run_walkthrough(session) if walkthrough else None
        failure = failure or run_examples(
            session, first_seed=seed, examples=examples, budget=60, steps=50, shrink=shrink
        )
        return failure, session


def play_fixed(
    history: Callable[[Lockstep], None], target: str | OpenStorage = "memory:"
) -> LawFailure | None:
    """Run one fixed history of the walkthrough."""
    with open_session(target) as session:
        return run_until_failure(
            session, lambda: play_history(session, history, compare_each=is_compared(history))
        )


@contextmanager
def open_session(target: str | OpenStorage, *, durable: bool = False) -> Iterator[ExampleSession]:
    runner = LoopRunner()
    locations = Locations(target)
    claims = runner.run(read_claims(locations))
    session = ExampleSession(
        locations=locations,
        story=CallRecorder(),
        runner=runner,
        durable=durable,
        compacts=durable,
        cross_queue=True,
        limits=claims.limits,
        fair=claims.fair,
        output=claims.output,
        handles=True,
    )
    try:
        yield session
    finally:
        session.locations.remove_all()
        runner.close()


async def read_claims(locations: Locations) -> Capabilities:
    """Return the capabilities that a storage claims."""
    async with locations.open(locations.new(), "manual") as storage:
        return storage.capabilities


def play_level(level: str, target: str, claims: Capabilities, examples: int, seed: int = 1) -> Findings:
    """Run a level above L0 until one history fails, without shrinking the failure."""
    locations = Locations(target)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(concert, "SHRINK_SECONDS", 0.0)
            return LEVELS[level](
                LevelPlan(locations=locations, claims=claims, seed=seed, budget=0, examples=examples)
            )
    finally:
        locations.remove_all()
