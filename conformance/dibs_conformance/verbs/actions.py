"""The actions of the test clients, the record of their calls, and the situations that actions lead to.

An action is a random call as data, which can be sent to another process. A failing example is shrunk by
removing actions. So an action does not contain fences, revisions or leases. It picks them from the
`ClientState` when it runs, for example "the newest run".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, Literal

from attrs import define, evolve, field, frozen

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.model.results import ClaimResult, State

#: Lifetimes of leases in ms. A short lease expires within an example once a client adds `PAST_SHORT_TTL` to
#: its time.
LONG_TTL, SHORT_TTL, PAST_SHORT_TTL = 3_600_000, 10, 11
UNUSED_LEASE = "0" * 32
#: 2026-01-01 UTC, in ms.
START = 1_767_225_600_000
#: The ids of all examples. Few ids, so that clients meet.
IDS = ("a", "b")


@frozen(kw_only=True)
class ClientAction:
    """One call that a client is to make."""

    operation: str
    ids: tuple[str, ...] = ("a",)
    #: Selects a run or revision of the client's state. 0 is the newest.
    nth_newest: int = 0
    #: Selects a lease: 0 is the long lease, 1 the short lease, 2 a lease that was never granted. -1 is the
    #: newest lease.
    lease: int = 0
    #: A key of `verbs.settle.SETTLE_ACTIONS`.
    settle_as: str = "complete"
    #: The cost of a settled run, in thousandths of a start; None for one start.
    cost: int | None = None
    #: An index into `verbs.enqueue.CONFLICT_OPTIONS`.
    conflict: int = 0
    #: An index into `verbs.enqueue.JOB_DATA`, or `LARGE_DATA`.
    data: int = 0
    #: Delay of an enqueued job in ms.
    delay: int = 0
    limit: int = 10
    #: Chooses a variant of the operation, for example `running` of a cancel.
    flag: bool = False
    #: Added to the time of the example, in ms.
    clock_offset: int = 0
    #: A key of `verbs.configure.SETTINGS_PATCHES`.
    configure_to: str = "pause"
    #: The state of a listing.
    state: State = "waiting"
    #: Makes payloads, request keys and imported numbers differ. With 0, they are those of the tables.
    serial: int = 0


@frozen
class Hold:
    """The point at which a client stops until the other clients of its round are done."""

    #: Counts the coroutines that the client enters or resumes, or its lines of storage code.
    at: int
    unit: Literal["coroutine", "line"] = "coroutine"


@define
class ClientState:
    """The runs, revisions, leases and offsets of the log that clients received so far, oldest first."""

    runs: list[tuple[str, int]] = field(factory=list)
    revisions: list[tuple[str, int]] = field(factory=list)
    leases: list[str] = field(factory=list)
    offsets: list[str] = field(factory=list)

    def add_claim(self, claim: ClaimResult) -> None:
        """Add the fences and revisions of the claimed jobs."""
        self.runs += [(job.id, job.run.fence) for job in claim.jobs if job.run is not None]
        self.revisions += [(job.id, job.revision) for job in claim.jobs]

    def lease(self, action: ClientAction) -> str:
        """Return the lease that an action picks, or one that was never granted if the client has too few."""
        return self.leases[action.lease] if action.lease < min(2, len(self.leases)) else UNUSED_LEASE

    def run(self, action: ClientAction) -> tuple[str, int]:
        """Return the id and the fence of the run that an action picks; without any run, a fence of 1."""
        return nth_newest(self.runs, action.nth_newest) or (action.ids[0], 1)

    def revision(self, action: ClientAction) -> tuple[str, int]:
        """Return the id and the revision that an action picks; without any, a revision of 1."""
        return nth_newest(self.revisions, action.nth_newest) or (action.ids[0], 1)


def nth_newest(received: list[tuple[str, int]], nth: int) -> tuple[str, int] | None:
    return received[-1 - nth % len(received)] if received else None


@frozen
class Program:
    """The actions that one client runs next, with the client state and the time they start from."""

    actions: tuple[ClientAction, ...]
    queue: str
    state: ClientState
    #: In ms; 0 for the time of the storage itself.
    now: int
    #: The place in the storage's code at which the client stops during this action; None for no stop. Clients
    #: without a scheduler ignore it.
    hold: Hold | None = None

    def with_own_state(self) -> Program:
        """Return a copy with its own `ClientState`, so that the client can add to it."""
        state = self.state
        own = ClientState(list(state.runs), list(state.revisions), list(state.leases), list(state.offsets))
        return evolve(self, state=own)


#: The end of a call. `unknown`: the call has no answer, and may take effect at any time after it was sent.
#: `refused`: it had no effect. `raised`: it raised an exception that the contract does not allow.
Completion = Literal["answered", "unknown", "refused", "raised"]


@define(kw_only=True)
class ClientCall:
    """One call of one client, with the times at which it was sent (`invoked`) and answered (`returned`).

    All clients of an example take both times from the same clock.
    """

    client: str
    operation: str
    queue: str
    args: Mapping[str, Any]
    #: The storage time passed as an argument, in ms; 0 if the call has the time of the storage itself.
    now: int
    invoked: float
    #: Infinite until the answer arrives.
    returned: float = inf
    completion: Completion = "unknown"
    answer: Any = None

    def overlaps(self, other: ClientCall) -> bool:
        """Return whether the two calls overlap in time."""
        return self.invoked <= other.returned and other.invoked <= self.returned


@define(kw_only=True)
class Snapshot:
    """The content of a queue, read while all clients are idle."""

    now: int
    slots: Mapping[str, Slot]
    #: Jobs of the fail queue. Their ids are generated.
    failed: Mapping[str, Slot] = field(factory=dict)
    #: The chunks of each id; without any id if the storage keeps no output.
    outputs: Mapping[str, Sequence[LogEvent]] = field(factory=dict)
    #: The settings of the queue and all events of its log. They are read only after the last round.
    settings: Settings | None = None
    events: Sequence[LogEvent] | None = None
    #: The offset of each event.
    offsets: Sequence[str] = ()


@define(kw_only=True)
class Round:
    """Calls that may overlap, and a snapshot taken after they returned."""

    calls: list[ClientCall]
    snapshot: Snapshot | None = None


#: Situations by name: the actions that lead to each. Every example begins with one long and one short lease.
SITUATIONS: Final = {
    "leases": "grant; grant lease=1",
    "both wait": "leases; enqueue a b",
    "runs": "leases; enqueue; claim",
    "runs with a successor": "runs; enqueue data=1",
    # A short lease can expire within an example.
    "runs under a short lease": "leases; enqueue; claim lease=1",
    "handed off": "runs; settle hand off",
    "parked": "runs; settle park",
    "failed": "runs; settle fail",
    # The outcome expires as soon as a client adds `PAST_SHORT_TTL` to its time.
    "short outcome": "configure short outcomes; runs under a short lease; settle",
    # Both ids wait, with the same key, and then in a queue that allows one run of a key at a time.
    "keyed": "leases; enqueue a b data=3",
    "one of two": "leases; configure one of a key; enqueue a b data=3",
    # One of two jobs of a full key runs. A storage without limits has the same states.
    "a full key": "keyed; configure one of a key; claim one",
    # Both ids wait, with the same key, in a queue whose keys take turns.
    "turns": "keyed; configure turns",
    # Two jobs wait in a queue that allows one start a minute.
    "one start": "leases; configure one start; enqueue a b",
    # One job waits, and the queue takes no other.
    "a full queue": "leases; configure one waiting; enqueue",
}
#: Words in the text of an action that stand for values of its fields.
WORDS: Final[dict[str, dict[str, Any]]] = {
    "late": {"clock_offset": PAST_SHORT_TTL},
    "one": {"limit": 1},
    "flag": {"flag": True},
}


def read_actions(text: str) -> tuple[ClientAction, ...]:
    """Return the actions of a text: situations, and operations with their options, separated by `;`.

    For example, "runs; enqueue b data=1; settle retry later; configure one of a key; reap late". The words
    after an operation are ids, or the name of a settle action or a settings patch.
    """
    found: list[ClientAction] = []
    for step in text.split("; "):
        found += read_actions(SITUATIONS[step]) if step in SITUATIONS else [read_action(step)]
    return tuple(found)


def read_action(text: str) -> ClientAction:
    operation, *words = text.split()
    if operation == "configure":
        return ClientAction(operation=operation, configure_to=" ".join(words))
    fields: dict[str, Any] = {}
    for word in (word for word in words if word in WORDS or "=" in word):
        name, _, value = word.partition("=")
        parsed = (
            tuple(value.split("+")) if name == "ids" else int(value) if value.lstrip("-").isdigit() else value
        )
        fields |= WORDS.get(word, {name: parsed})
    if plain := [word for word in words if word not in WORDS and "=" not in word]:
        fields |= {"settle_as": " ".join(plain)} if operation == "settle" else {"ids": tuple(plain)}
    return ClientAction(operation=operation, **fields)


GRANTS: Final = read_actions("leases")
