"""The races that every run of L1 tries: two operations that must overlap, in a state where that matters.

On L1 the first operation stops in the middle, at a point that moves from visit to visit, until the calls of
the other client have returned.
"""

from __future__ import annotations

from math import exp, log
from random import Random
from typing import Final

from attrs import frozen

from dibs_conformance.concurrent.actions import (
    GRANTS,
    IDS,
    KEYED_DATA,
    OTHER_KEY_DATA,
    PAST_SHORT_TTL,
    UPDATE_ONLY,
    Action,
    Hold,
    random_action,
)

ENQUEUE, CLAIM = Action(operation="enqueue"), Action(operation="claim")
ENQUEUE_BOTH = Action(operation="enqueue", ids=IDS)
ENQUEUE_OTHER = Action(operation="enqueue", ids=IDS[1:])
#: The job `a` is active under the short lease, which can expire within an example.
RUNNING = (*GRANTS, ENQUEUE, Action(operation="claim", lease=1))
REAP = Action(operation="reap", clock_offset=PAST_SHORT_TTL)
COMPLETE = Action(operation="settle", clock_offset=PAST_SHORT_TTL)
SETTLE = Action(operation="settle")
SETTLE_AND_CLAIM = Action(operation="settle_and_claim", clock_offset=PAST_SHORT_TTL)
SERVE = Action(operation="serve", clock_offset=PAST_SHORT_TTL)
READ_LOG = Action(operation="events")
ALL_EVENTS = Action(operation="configure", configure_to="all events")
#: An outcome of `a` that expires as soon as a client adds `PAST_SHORT_TTL` to its time.
SHORT_OUTCOME = (
    Action(operation="configure", configure_to="short outcomes"),
    *RUNNING,
    Action(operation="settle"),
)


@frozen(kw_only=True)
class Race:
    """Two operations of two clients. Without actions, each client makes a random call of its operation."""

    first: str
    second: str
    #: The section of the contract that states the results of such an overlap.
    section: str
    setup: tuple[Action, ...] = RUNNING
    first_action: Action | None = None
    second_actions: tuple[Action, ...] = ()
    #: The actions of both clients in the next round. If empty, the actions of that round are random.
    after: tuple[Action, ...] = ()

    @property
    def name(self) -> str:
        return " beside ".join(sorted((self.first, self.second)))

    def actions(self, random: Random) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
        """Return the actions of the two clients."""
        clock_offset = PAST_SHORT_TTL if "reap" in (self.first, self.second) else 0
        first = self.first_action or random_action(
            random, IDS, operation=self.first, clock_offset=clock_offset
        )
        second = random_action(random, IDS, operation=self.second, clock_offset=clock_offset)
        return (first,), self.second_actions or (second,)


def race(first: str, second: str, section: str = "3", **fields: object) -> Race:
    return Race(first=first, second=second, section=section, **fields)  # type: ignore[arg-type]


ONE_ACTIVE = Action(operation="configure", configure_to="one active")
ONE_OF_A_KEY = Action(operation="configure", configure_to="one of a key")
ANY_OF_A_KEY = Action(operation="configure", configure_to="any of a key")
ONE_START = Action(operation="configure", configure_to="one start")
ONE_START_OF_A_KEY = Action(operation="configure", configure_to="one start of a key")
CLAIM_ONE = Action(operation="claim", limit=1)
#: Both ids wait, with the same key.
KEYED = (*GRANTS, Action(operation="enqueue", ids=IDS, data=KEYED_DATA))
#: One of two jobs of a full key runs, and the other waits. A storage without limits has the same states.
FULL_KEY = (*KEYED, ONE_OF_A_KEY, CLAIM_ONE)
OTHER_KEY = Action(operation="enqueue", ids=IDS[1:], data=OTHER_KEY_DATA)
RACES: Final = (
    race("claim", "claim", "2"),
    race("claim", "enqueue"),
    race("enqueue", "enqueue"),
    race("enqueue", "settle", "3, the fold law"),
    race(
        "enqueue",
        "settle",
        "3, the fold law",
        first_action=Action(operation="enqueue", conflict=UPDATE_ONLY),
        second_actions=(SETTLE,),
    ),
    race(
        "report",
        "settle",
        "1, the memo",
        first_action=Action(operation="report", limit=1),
        second_actions=(Action(operation="settle", settle_as="retry"), CLAIM),
    ),
    race("claim", "settle"),
    race("settle", "settle"),
    race("cancel", "settle"),
    race("claim", "reap", "3, leases"),
    race("settle", "reap", "3, leases", first_action=COMPLETE, second_actions=(REAP, CLAIM)),
    race("report", "reap", "3, leases", second_actions=(REAP, CLAIM)),
    race(
        "settle_and_claim",
        "reap",
        "3, leases",
        first_action=SETTLE_AND_CLAIM,
        second_actions=(REAP, CLAIM),
    ),
    race("serve", "reap", "3, leases", first_action=SERVE, second_actions=(REAP, CLAIM)),
    race(
        "serve", "serve", first_action=Action(operation="serve"), second_actions=(Action(operation="serve"),)
    ),
    race("serve", "claim", setup=(*GRANTS, ENQUEUE_BOTH), first_action=Action(operation="serve", limit=1)),
    race("renew", "reap", "3, leases"),
    race(
        "renew",
        "drop",
        "3, leases",
        first_action=Action(operation="renew", lease=1),
        second_actions=(Action(operation="drop", lease=1),),
        after=(Action(operation="claim", lease=1),),
    ),
    race(
        "finish",
        "cancel",
        "3, finish",
        setup=(*RUNNING, Action(operation="settle", settle_as="hand off")),
        first_action=Action(operation="finish"),
        second_actions=(Action(operation="cancel", flag=True), ENQUEUE, CLAIM),
    ),
    race("cancel", "claim", setup=(*GRANTS, ENQUEUE)),
    race("amend", "claim", setup=(*GRANTS, ENQUEUE)),
    race("forget", "claim", setup=(*GRANTS, ENQUEUE)),
    race("retry_failed", "enqueue", setup=(*RUNNING, Action(operation="settle", settle_as="fail"))),
    race(
        "claim",
        "claim",
        "3, claim",
        setup=(*GRANTS, ONE_ACTIVE, ENQUEUE_BOTH),
        first_action=Action(operation="claim", limit=1),
        second_actions=(Action(operation="claim", limit=1),),
    ),
    race(
        "claim",
        "configure",
        "3, configure",
        setup=(*GRANTS, ENQUEUE_BOTH),
        first_action=Action(operation="claim", limit=1),
        second_actions=(Action(operation="configure", configure_to="pause"),),
        after=(CLAIM,),
    ),
    race(
        "configure",
        "configure",
        "3, configure",
        first_action=Action(operation="configure", configure_to="log size"),
        second_actions=(Action(operation="configure", configure_to="key age"),),
    ),
    race(
        "import_",
        "enqueue",
        "4.1",
        setup=GRANTS,
        first_action=Action(operation="import_"),
        second_actions=(ENQUEUE,),
    ),
    race("import_", "import_", "3, import_", setup=GRANTS, first_action=Action(operation="import_")),
    race(
        "prune",
        "enqueue",
        "4.1",
        setup=SHORT_OUTCOME,
        first_action=Action(operation="prune", clock_offset=PAST_SHORT_TTL),
        second_actions=(Action(operation="enqueue", clock_offset=PAST_SHORT_TTL),),
    ),
    race(
        "enqueue",
        "events",
        "3, events",
        setup=(*GRANTS, ALL_EVENTS),
        first_action=ENQUEUE,
        second_actions=(ENQUEUE_OTHER, READ_LOG),
    ),
    race(
        "settle",
        "events",
        "3, events",
        setup=(*RUNNING, ENQUEUE_OTHER),
        first_action=COMPLETE,
        second_actions=(Action(operation="cancel", ids=IDS[1:]), READ_LOG),
    ),
    race(
        "list",
        "settle",
        "3, list",
        setup=(*GRANTS, ENQUEUE_BOTH, CLAIM),
        first_action=Action(operation="list", state="active", limit=1),
    ),
    race("export", "enqueue", "3, export", first_action=Action(operation="export", limit=1)),
    race("split", "forget", "3, split", first_action=Action(operation="split", limit=1)),
    race("counts", "claim", "3, counts", setup=(*GRANTS, ENQUEUE_BOTH)),
    *(
        race(
            "claim",
            "claim",
            "2",
            setup=(*KEYED, limit),
            first_action=CLAIM_ONE,
            second_actions=(CLAIM_ONE,),
            after=(CLAIM,),
        )
        for limit in (ONE_OF_A_KEY, ONE_START, ONE_START_OF_A_KEY)
    ),
    race(
        "claim", "settle", "2", setup=FULL_KEY, first_action=CLAIM, second_actions=(SETTLE,), after=(CLAIM,)
    ),
    race(
        "settle", "claim", "2", setup=FULL_KEY, first_action=SETTLE, second_actions=(CLAIM,), after=(CLAIM,)
    ),
    race(
        "settle_and_claim",
        "claim",
        "2",
        setup=FULL_KEY,
        first_action=Action(operation="settle_and_claim"),
        second_actions=(CLAIM,),
        after=(CLAIM,),
    ),
    race(
        "claim",
        "enqueue",
        "2",
        setup=FULL_KEY,
        first_action=CLAIM,
        second_actions=(OTHER_KEY,),
        after=(CLAIM,),
    ),
    race(
        "claim",
        "configure",
        "2",
        setup=FULL_KEY,
        first_action=CLAIM,
        second_actions=(ANY_OF_A_KEY,),
        after=(CLAIM,),
    ),
    race(
        "configure",
        "settle",
        "2",
        setup=(*KEYED, CLAIM_ONE),
        first_action=ONE_OF_A_KEY,
        second_actions=(CLAIM, SETTLE),
        after=(CLAIM,),
    ),
    race(
        "claim",
        "forget",
        "2",
        setup=FULL_KEY,
        first_action=CLAIM,
        second_actions=(Action(operation="forget"),),
        after=(CLAIM,),
    ),
)
SECTIONS: Final = {one.name: one.section for one in reversed(RACES)}
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
