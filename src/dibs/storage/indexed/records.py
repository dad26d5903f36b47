"""Values that an index holds for a queue: leases, request keys, and the changes of the current step."""

from __future__ import annotations

from msgspec import Struct

from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.model.results import EnqueueStatus, FoundState
from dibs.storage.indexed.event_log import Entry
from dibs.storage.indexed.output import Output


class Lease(Struct, frozen=True, gc=False, array_like=True):
    """The right of a worker to its claimed jobs in one queue. It ends at `expires_at` or with a drop."""

    holder: str
    #: The end of the lease, in ms since the epoch.
    expires_at: int
    #: True after the first `drop`.
    dropped: bool = False

    def alive(self, now: int) -> bool:
        """Return whether the lease may still be renewed and used for claims."""
        return now < self.expires_at and not self.dropped


class RequestKey(Struct, frozen=True, gc=False, array_like=True):
    """The result of an enqueue with a request_key. Repeats of the enqueue get it until `expires_at`, ms."""

    status: EnqueueStatus
    found: FoundState
    first: int
    revision: int
    expires_at: int
    #: The id of the request.
    id: str


#: The turn of a key in a queue with `fair`: its place among the keys, and the starts since it began. A place
#: is a number, drawn as a seq. The lowest is first.
Turn = tuple[int, int]


class Changes:
    """The changes of one step in one queue: enough to write the step to a file and to undo it.

    Each mapping holds the values before the step; the index holds the values after it.
    """

    __slots__ = (
        "clocks",
        "ended",
        "entries",
        "keys",
        "leases",
        "outputs",
        "reported",
        "settings",
        "slots",
        "trimmed_before",
        "trimmed_entries",
        "turns",
        "used_before",
        "work_before",
    )

    def __init__(self, *, used_before: bool, work_before: int) -> None:
        #: QueueIndex.used before the step.
        self.used_before = used_before
        #: QueueIndex.work_version before the step. Another value after the step wakes the waits for work.
        self.work_before = work_before
        self.slots: dict[str, Slot] = {}
        self.leases: dict[str, Lease | None] = {}
        self.keys: dict[str, RequestKey | None] = {}
        self.clocks: dict[str, int | None] = {}
        self.settings: Settings | None = None
        self.turns: dict[str, Turn | None] = {}
        self.outputs: dict[str, Output | None] = {}
        #: The entries that the step appended to the log.
        self.entries: list[Entry] = []
        #: EventLog.trimmed before the step; None if the step did not trim the log.
        self.trimmed_before: int | None = None
        #: The entries that the step removed from the log.
        self.trimmed_entries: list[Entry] = []
        #: The ids whose outcome or dropped ranges changed, and removed ids. Waits for these ids are woken.
        self.ended: list[str] = []
        #: The ids whose runs reported progress or output. Waits for progress are woken.
        self.reported: list[str] = []
