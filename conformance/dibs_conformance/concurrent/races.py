"""The races that every run of L1 tries: two verbs that must overlap, in a state where that matters.

The module of the first verb has the race (dibs_conformance/verbs). On L1 the first call stops in the middle,
at a point that moves from visit to visit, until the calls of the other client have returned.
"""

from __future__ import annotations

from math import exp, log
from random import Random
from typing import Final

from dibs.model.results import State
from dibs_conformance.verbs import VERBS
from dibs_conformance.verbs.actions import IDS, PAST_SHORT_TTL, ClientAction, Hold
from dibs_conformance.verbs.configure import ONLY_IN_SETUP, SETTINGS_PATCHES
from dibs_conformance.verbs.enqueue import CONFLICT_OPTIONS, JOB_DATA
from dibs_conformance.verbs.settle import SETTLE_ACTIONS
from dibs_conformance.verbs.verb import Race

RACES: Final = tuple(race for verb in VERBS.values() for race in verb.races)
SECTIONS: Final = {one.name: one.section for one in reversed(RACES)}
#: Relative frequency of each verb among random calls.
WEIGHTS: Final = {verb.name: verb.weight for verb in VERBS.values() if verb.weight}
LISTED_STATES: Final[tuple[State, ...]] = ("waiting", "active", "blocked", "completed")
#: The longest hold, in coroutines that a call enters or resumes, and in lines.
MAX_COROUTINES, MAX_LINES = 8, 300
#: The coroutines at which the first visits of a race stop. At the first coroutine a call has not read yet.
FIRST_HOLDS: Final = (2, 3, 4, 1)


def random_hold(random: Random) -> Hold:
    """Return a random point at which a client stops. Points early in a call are more frequent."""
    if random.random() < 0.7:
        return Hold(random.choice((1, 2, 2, 3, 3, 4, 5, 6, MAX_COROUTINES)))
    return Hold(int(exp(random.uniform(0, log(MAX_LINES)))), "line")


def hold_of_visit(random: Random, visit: int) -> Hold:
    """Return the hold of a race that was tried `visit` times before: the first coroutines, then any point."""
    return Hold(FIRST_HOLDS[visit]) if visit < len(FIRST_HOLDS) else random_hold(random)


def race_actions(race: Race, random: Random) -> tuple[tuple[ClientAction, ...], tuple[ClientAction, ...]]:
    """Return the actions of the two clients of a race."""
    clock_offset = PAST_SHORT_TTL if "reap" in (race.first, race.second) else 0
    first = race.first_action or random_action(random, IDS, operation=race.first, clock_offset=clock_offset)
    second = random_action(random, IDS, operation=race.second, clock_offset=clock_offset)
    return (first,), race.second_actions or (second,)


def random_action(
    random: Random, ids: tuple[str, ...], *, operation: str = "", clock_offset: int = 0
) -> ClientAction:
    """Return a random action, or a random action of this operation."""
    operation = operation or random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return ClientAction(
        operation=operation,
        ids=tuple(random.choices(ids, (4, *(1 for _ in ids[1:])), k=random.choice((1, 1, 1, 2)))),
        nth_newest=random.choice((0, 0, 0, 1, 2)),
        lease=random.choice((0, 0, 0, 1, 1, 2)),
        settle_as=random.choice(list(SETTLE_ACTIONS)),
        conflict=random.randrange(len(CONFLICT_OPTIONS)),
        data=random.randrange(len(JOB_DATA)),
        delay=random.choice((0, 0, 0, 5)),
        limit=random.choice((1, 10)),
        flag=random.random() < 0.5,
        clock_offset=clock_offset or random.choice((0, 0, 0, 0, PAST_SHORT_TTL)),
        configure_to=random.choice([name for name in SETTINGS_PATCHES if name not in ONLY_IN_SETUP]),
        state=random.choice(LISTED_STATES),
    )
