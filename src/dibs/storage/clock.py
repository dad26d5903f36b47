"""The time of a storage while its clock is behind the highest time that the storage has seen.

The *lead* of a storage is the number of ms by which its time is ahead of its clock; 0 for a right clock. A
storage keeps the lead next to its highest time (docs/explanation/contract.md, Time).
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

log: Final = logging.getLogger("dibs.storage.clock")

#: Ms by which a clock may step back without a lead: the time of the storage then stands still. NTP steps a
#: clock by 128 ms or more, and a leap second by 1 s. A lead for each of these steps would add up.
TOLERANCE: Final = 1_000

#: us by which the numbers of a new incarnation, such as a copy of the data, are further ahead of its time
#: than those of the incarnation before (docs/explanation/contract.md, Numbers after a loss).
JUMP: Final = 3_600_000_000

#: The lead that this process has last reported, by the name of the storage.
_reported: Final[dict[str, int]] = {}


def storage_time(clock: int, highest: int, lead: int) -> tuple[int, int]:
    """Return the time of a storage and its lead, both in ms.

    `clock` is the time of its clock, `highest` its highest time so far, and `lead` its stored lead.
    """
    if clock >= highest - TOLERANCE:
        lead = 0
    elif clock + lead < highest - TOLERANCE:
        lead = highest - clock
    return max(clock + lead, highest), lead


def report_lead(storage: str, lead: int) -> None:
    """Log a WARNING for a new lead of a storage, once in this process. `storage` names it for the message."""
    before = _reported.get(storage, 0)
    if abs(lead - before) <= TOLERANCE:
        return
    if lead:
        _reported[storage] = lead
        log.warning(
            "the time of %s is %s ahead of its clock: the clock was ahead once, or was set back. Time goes "
            "on from there, and jobs with an absolute run_at start that much too early; "
            "the guide 'Correct the clock' says how to correct it",
            storage,
            timedelta(seconds=round(lead / 1000)),
        )
    else:
        _reported.pop(storage, None)  # another thread may have removed it
        log.info("the clock of %s has caught up with its time", storage)
