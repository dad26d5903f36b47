"""What one atomic step changed in a queue: enough to write it down, and enough to undo it."""

from __future__ import annotations

from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.storage.indexed.event_log import Entry
from dibs.storage.indexed.records import Lease, RequestKey


class Changes:
    """The former values of what was put, the first one for each key; what holds now is in the index."""

    __slots__ = (
        "ended",
        "entries",
        "trimmed_entries",
        "keys",
        "leases",
        "settings",
        "slots",
        "trimmed_before",
        "used_before",
    )

    def __init__(self, *, used_before: bool) -> None:
        #: Whether the queue was there before this step.
        self.used_before = used_before
        self.slots: dict[str, Slot] = {}
        self.leases: dict[str, Lease | None] = {}
        self.keys: dict[str, RequestKey | None] = {}
        self.settings: Settings | None = None
        #: Appended to the log.
        self.entries: list[Entry] = []
        #: How far the log was trimmed before, and what was trimmed.
        self.trimmed_before: int | None = None
        self.trimmed_entries: list[Entry] = []
        #: Ids with an end: somebody may wait for them.
        self.ended: list[str] = []
