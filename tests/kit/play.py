"""Plays one level on a storage, without the rest of a certification."""

from __future__ import annotations

import pytest

from dibs.storage.capabilities import Capabilities
from dibs_conformance.concurrent import examples as concert
from dibs_conformance.laws import LAWS
from dibs_conformance.levels import RUNS
from dibs_conformance.levels.level import Given
from dibs_conformance.report import Failure, Findings
from dibs_conformance.report.story import StoryLines
from dibs_conformance.sequential.examples import run_examples, run_tour
from dibs_conformance.sequential.lockstep import Judges
from dibs_conformance.sequential.trial import Trial
from dibs_conformance.target import Bridge, OpenStorage, Places


def play(
    examples: int,
    seed: int = 1,
    *,
    shrink: bool = False,
    target: str | OpenStorage = "memory:",
    durable: bool = False,
    tour: bool = False,
) -> tuple[Failure | None, Trial]:
    """Play until something is found, after the tour if that is asked for; `trial.examples` tells when."""
    bridge = Bridge()
    judges = Judges([law() for law in LAWS], StoryLines())
    trial = Trial(places=Places(target), judges=judges, bridge=bridge, durable=durable, cross_queue=True)
    try:
        failure = run_tour(trial) if tour else None
        failure = failure or run_examples(
            trial, first_seed=seed, examples=examples, budget=60, steps=50, shrink=shrink
        )
        return failure, trial
    finally:
        trial.places.clear()
        bridge.close()


def play_level(level: str, target: str, claims: Capabilities, examples: int, seed: int = 1) -> Findings:
    """Play a level above L0 until something is found; its story is left as long as it is."""
    places = Places(target)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(concert, "SHORTENING", 0.0)
            return RUNS[level](Given(places=places, claims=claims, seed=seed, budget=0, examples=examples))
    finally:
        places.clear()
