"""The verb `split`, which divides a listing or an export into parts."""

from __future__ import annotations

from dibs.model.results import State
from dibs_conformance.lockstep.core import CursorRange, LockstepCore
from dibs_conformance.oracle.numbering import Mismatch


class SplitCalls(LockstepCore):
    """`split`, called in lockstep."""

    def split(self, queue: str, parts: int, state: State | None = None) -> list[CursorRange]:
        """Return the two cursors of each part into which `split` divides a listing or an export."""
        args = {"queue": queue, "parts": parts, "state": state}
        cuts = self.call(
            "split", args, self.storage.split(queue, parts, **self.options("split", state=state))
        )
        if len(cuts) >= parts:
            raise Mismatch(
                f"split in {parts} parts returned {len(cuts)} cursors; expected at most {parts - 1}"
            )
        return list(zip((None, *cuts), (*cuts, None), strict=True))
