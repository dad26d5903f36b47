"""The faults of a simulation, drawn before it begins: what breaks when, and for how long.

Storms and calm times take turns. Each seed leaves out some kinds of faults, and each storm further ones:
tests with few kinds each find more than one with all. In calm times the system must be itself again.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from msgspec import Struct

#: The kinds of faults.
KINDS: Final = (
    "kill machine",
    "kill process",
    "freeze machine",
    "freeze process",
    "bad network",
    "refused",
    "silent",
    "restart storage",
    "freeze storage",
    "jump storage clock",
    "jump clock",
    "deploy",
)
#: Seconds of a storm and of a calm time, the shortest and the longest.
STORM: Final = (60.0, 600.0)
CALM: Final = (200.0, 600.0)
#: Seconds until the first storm.
FIRST: Final = (5.0, 100.0)


class Fault(Struct, frozen=True):
    """One fault: at `at` seconds, of the machine with an index, for some seconds."""

    at: float
    kind: str
    machine: int
    seconds: float
    #: A number from 0 to 1 by which the fault draws what it still needs.
    draw: float


class Storm(Struct, frozen=True):
    """A time with faults, in seconds since the beginning."""

    begin: float
    end: float


def draw_faults(seed: int, seconds: float, machines: int) -> tuple[Sequence[Storm], Sequence[Fault]]:
    """Return the storms and faults of a simulation of this length. The last hour ends calm."""
    random = Random(f"faults of {seed}")
    kinds = [kind for kind in KINDS if random.random() < 0.75] or [random.choice(KINDS)]
    storms: list[Storm] = []
    faults: list[Fault] = []
    now = random.uniform(*FIRST)
    while now < seconds:
        end = min(now + random.uniform(*STORM), seconds)
        storms.append(Storm(now, end))
        faults += _draw_storm(random, now, end, kinds, machines)
        now = end + random.uniform(*CALM)
    return storms, faults


def _draw_storm(random: Random, begin: float, end: float, kinds: list[str], machines: int) -> list[Fault]:
    chosen = [kind for kind in kinds if random.random() < 0.5] or [random.choice(kinds)]
    pause = random.choice((2.0, 8.0, 30.0))
    found, now = [], begin
    while (now := now + random.expovariate(1 / pause)) < end:
        seconds = random.choice((0.05, 1.0, 4.0, 12.0, 25.0, 60.0)) * random.uniform(0.5, 1.5)
        kind = random.choice(chosen)
        found.append(Fault(now, kind, random.randrange(machines), min(seconds, end - now), random.random()))
    return found
