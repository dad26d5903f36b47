"""Plays the machine on the memory storage, without the rest of a certification."""

from __future__ import annotations

from dibs_conformance.examples import run_examples
from dibs_conformance.laws import LAWS
from dibs_conformance.pairs import Judges
from dibs_conformance.report import Failure
from dibs_conformance.story import StoryLines
from dibs_conformance.target import Bridge, Places
from dibs_conformance.trial import Trial


def play(examples: int, seed: int = 1, *, shrink: bool = False) -> tuple[Failure | None, Trial]:
    bridge = Bridge()
    judges = Judges([law() for law in LAWS], StoryLines())
    trial = Trial(places=Places("memory:"), judges=judges, bridge=bridge, cross_queue=True)
    try:
        failure = run_examples(trial, first_seed=seed, examples=examples, budget=60, steps=50, shrink=shrink)
        return failure, trial
    finally:
        bridge.close()
