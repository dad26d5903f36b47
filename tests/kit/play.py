"""Plays the machine on a storage, without the rest of a certification."""

from __future__ import annotations

from dibs_conformance.examples import run_examples, run_tour
from dibs_conformance.laws import LAWS
from dibs_conformance.pairs import Judges
from dibs_conformance.report import Failure
from dibs_conformance.story import StoryLines
from dibs_conformance.target import Bridge, OpenStorage, Places
from dibs_conformance.trial import Trial


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
