"""The minimizer: it makes the options of a failing simulation smaller as long as the same promise breaks.

Each attempt runs the whole simulation again. Without a fault the history after it is another one, so an
attempt may keep the promise by chance. The result is small, not smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from msgspec.structs import replace

from dibs_conformance.simulation.faults import KINDS, draw_faults
from dibs_conformance.simulation.simulation import Options, Result

#: Seconds after which no further attempt begins.
LONGEST: Final = 300.0


def minimize(result: Result, run: Callable[[Options], Result], on_smaller: Callable[[str], None]) -> Result:
    """Return the result of the smallest options that were found to break the same promise as `result`."""
    deadline = monotonic() + LONGEST
    attempts = _smaller(result)
    while monotonic() < deadline and (attempt := next(attempts, None)) is not None:
        options, text = attempt
        found = run(options)
        if found.clause == result.clause:
            result, attempts = found, _smaller(found)
            on_smaller(text)
    return result


def _smaller(result: Result) -> Iterator[tuple[Options, str]]:
    """Yield options that are smaller than those of a result, the largest steps first."""
    options = result.options
    seconds = options.hours * 3600
    # More than a second, because hours are rounded: the same step would be tried for ever.
    if result.simulated + 2 < seconds:
        yield replace(options, hours=(result.simulated + 1) / 3600), f"{result.simulated:.0f} s"
    _, faults = draw_faults(options.seed, seconds, options.machines)
    present = [
        index
        for index, fault in enumerate(faults)
        if index not in options.without and fault.kind not in options.without_kinds
    ]
    for kind in KINDS:
        if any(faults[index].kind == kind for index in present):
            yield replace(options, without_kinds=options.without_kinds | {kind}), f"without {kind}"
    parts = 2
    while parts <= min(8, len(present)):
        size = -(-len(present) // parts)
        for first in range(0, len(present), size):
            dropped = present[first : first + size]
            yield replace(options, without=options.without | set(dropped)), f"without {len(dropped)} faults"
        parts *= 2
