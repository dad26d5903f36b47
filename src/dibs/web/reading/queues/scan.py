"""Jobs of a queue that a filter selects, found by a bounded scan: storages have no index of their values.

A page says how many entries the scan has read, and continues with the next ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from attrs import frozen

from dibs.model.job import Slot
from dibs.model.results import State
from dibs.web.reading.source import Budget, Shown, Source, to_shown

#: Bounds of a scan for one page: entries and seconds.
MAX_SCANNED: Final = 2_000
MAX_SECONDS: Final = 0.5
#: Entries that one call reads. Each comes with its payload, up to 1 MiB.
PAGE_SIZE: Final = 100


@frozen
class Filter:
    """The jobs that a reader looks for. Empty texts select all jobs."""

    #: Beginning of the id.
    prefix: str = ""
    #: Name of an attribute, and its value as text; an empty value selects all jobs with the attribute.
    attribute: str = ""
    value: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Filter:
        """Return the filter of an address; `attr` is "name" or "name=value"."""
        name, _, value = params.get("attr", "").partition("=")
        return cls(params.get("prefix", ""), name.strip(), value.strip())

    @property
    def is_empty(self) -> bool:
        return not (self.prefix or self.attribute)

    def selects(self, source: Source, queue: str, id: str, slot: Slot, state: State) -> bool:
        """Return whether a listed id is selected. Values are compared as a page shows them.

        So a value that the redaction hook hides cannot be found by a guess.
        """
        if not id.startswith(self.prefix):
            return False
        if not self.attribute:
            return True
        stored = attributes_of(slot, state)
        if self.attribute not in stored:
            return False
        shown = source.hide(
            queue, "attributes", {name: msgspec.json.decode(raw) for name, raw in stored.items()}
        )
        if isinstance(shown, Shown) or not isinstance(shown, Mapping) or self.attribute not in shown:
            return False
        return self.value in ("", _text(shown[self.attribute]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_shown(value).text


def attributes_of(slot: Slot, state: State) -> Mapping[str, bytes]:
    """Return the attributes of the part of an id that a listing of `state` is about."""
    if state == "blocked":
        return {} if slot.successor is None else slot.successor.data.attributes
    if state in ("completed", "failed", "cancelled"):
        return {} if slot.outcome is None else slot.outcome.kept_attributes
    return {} if slot.current is None else slot.current.data.attributes


@frozen
class Found:
    """The selected jobs of one page."""

    items: Sequence[tuple[str, Slot]]
    #: Cursor of the next page; None at the end of the listing.
    after: str | None
    #: Number of entries that were read.
    read: int


async def find_jobs(
    source: Source, queue: str, state: State, after: str | None, *, wanted: Filter, limit: int
) -> Found:
    """Return at least `limit` selected jobs after the cursor `after`, if the scan finds so many."""
    storage = await source.storage()
    budget, found = Budget(MAX_SCANNED, MAX_SECONDS), list[tuple[str, Slot]]()
    while True:
        # A page of a storage may be short, also without a filter.
        size = limit - len(found) if wanted.is_empty else PAGE_SIZE
        page = await budget.list(storage, queue, state, after=after, limit=size)
        found += [(id, slot) for id, slot in page.items if wanted.selects(source, queue, id, slot, state)]
        after = page.after
        if after is None or len(found) >= limit or budget.is_spent:
            return Found(found, after, budget.read)
