"""The levels, lowest first: what each is called, and the function that runs it. A level is added here."""

from __future__ import annotations

from typing import Final

from dibs_conformance.levels.level import Given as Given
from dibs_conformance.levels.level import Run as Run
from dibs_conformance.levels.level import law_report as law_report
from dibs_conformance.levels.level import verdict as verdict
from dibs_conformance.levels.sequence import in_order
from dibs_conformance.races.levels import at_once, interleaved

#: What each level asks, in a few words.
TITLES: Final = {
    "L0": "one call at a time",
    "L1": "calls interleaved",
    "L2": "threads and processes",
    "L3": "clients that die",
    "L4": "servers that fail",
}

#: How each is run. A storage reaches a level when it reaches all of those below as well.
RUNS: Final[dict[str, Run]] = {
    "L0": in_order,
    "L1": interleaved,
    "L2": at_once,
}
