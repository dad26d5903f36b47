"""The random calls of the clients of a recorded run.

They are actions of the verbs (verbs/actions.py). The rules of the checker allow for anything that a forget, a
retry_failed or a follow-up may have done, so these are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count
from random import Random
from typing import Final

from dibs.model.results import State
from dibs.storage.capabilities import Capabilities
from dibs_conformance.verbs.actions import GRANTS, ClientAction
from dibs_conformance.verbs.enqueue import CONFLICT_OPTIONS, JOB_DATA
from dibs_conformance.verbs.settle import SETTLE_ACTIONS

#: Few ids, so that clients meet. Other ids are used by one client only.
SHARED_IDS: Final = ("a", "b", "c")
#: After this number of calls a client uses the next id that all clients use at about the same time. So an
#: import meets an enqueue.
CALLS_PER_MET_ID: Final = 5
#: Relative frequency of each operation.
WEIGHTS: Final[Mapping[str, int]] = {
    "enqueue": 12,
    "claim": 10,
    "settle": 14,
    "settle_and_claim": 4,
    "claim_blocking": 2,
    "reap": 4,
    "report": 5,
    "renew": 2,
    "grant": 3,
    "drop": 2,
    "cancel": 2,
    "get": 2,
    "import_": 4,
    "prune": 2,
    "configure": 5,
    "events": 4,
    "list": 1,
    "export": 1,
    "split": 1,
    "counts": 1,
}
#: The patches of verbs.configure: most of them allow claims again. No patch trims the log.
PATCHES: Final = (
    *(
        "pause",
        *("resume",) * 4,
        "one active",
        *("some active",) * 3,
        *("any active",) * 3,
        *("short outcomes",) * 2,
    ),
    *("long outcomes", "log age", "key age", "all events", *("fail handler",) * 2, "no fail handler"),
)
LIMIT_PATCHES: Final = ("one of a key", "some starts", "some starts of a key", *("no limits",) * 4)
LISTED_STATES: Final[tuple[State, ...]] = ("waiting", "active")
#: The limits of claims, and those of the operations that read pages.
LIMITS: Final = (1, 3, 10)
PAGES: Final = {"events": (100,), "list": (2, 100), "export": (2, 100), "split": (2, 100), "prune": (3, 1000)}


def random_calls(
    random: Random, client: str, claims: Capabilities, weights: Mapping[str, int] = WEIGHTS
) -> Iterator[ClientAction]:
    """Return calls without end. The first ones grant leases."""
    chosen = {name: one for name, one in weights.items() if name != "claim_blocking" or claims.blocking_claim}
    patches = (*PATCHES, *LIMIT_PATCHES) if claims.limits else PATCHES

    def draw(number: int) -> ClientAction:
        [operation] = random.choices([*chosen], [*chosen.values()])
        met = f"m{number // CALLS_PER_MET_ID}"
        ids = random.choices((*SHARED_IDS * 2, f"{client}-{number}", met), k=random.choice((1, 1, 3)))
        of_operation = {"get": SHARED_IDS, "import_": (met,), "claim_blocking": (f"{client}-{number}",)}
        return ClientAction(
            operation=operation,
            ids=of_operation.get(operation, tuple(ids)),
            nth_newest=random.choice((0, 0, 1, 2, 3, 5, 8, 13)),
            lease=random.choice((0, 1)) if operation == "grant" else random.choice((-1, -1, -2, -3)),
            settle_as=random.choice((*("complete",) * 6, *SETTLE_ACTIONS)),
            conflict=random.randrange(len(CONFLICT_OPTIONS)),
            data=random.randrange(len(JOB_DATA)),
            delay=random.choice((0, 0, 0, 5)),
            limit=random.choice(PAGES.get(operation, LIMITS)),
            flag=operation in ("enqueue", "cancel", "report") and random.random() < 0.5,
            configure_to=random.choice(patches),
            state=random.choice(LISTED_STATES),
            serial=random.randrange(1, 1000),
        )

    return chain((*GRANTS, GRANTS[0]), map(draw, count()))
