"""The optional method with which a storage does its rare work at once."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Compaction(Protocol):
    """The method of a storage that rewrites its data now and then, as in a checkpoint or a vacuum."""

    async def compact(self) -> None:
        """Do the rare work of the storage now: a checkpoint, a vacuum, or a merge of files.

        Jobs, leases, settings, numbers and the log stay the same. The conformance kit calls this method
        between other calls, and while other clients make calls.
        """
        ...
