"""The output of one id: the chunks that its runs have reported (contract 3, The output of a run).

The chunks of the outcome come first, then those of the current. An Output has at least one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dibs.model.events import LogEvent
from dibs.model.limits import CHUNK_OVERHEAD
from dibs.model.results import EventPage
from dibs.storage.offsets import format_offset, parse_offset
from dibs.storage.protocol import LATEST

#: The number of a report, and the index of a chunk in it.
Position = tuple[int, int]
#: The value of `Output.cut` before the first trim: it is before every chunk.
NOT_CUT: Final[Position] = (0, -1)


class ReportedChunks(Struct, frozen=True, gc=False, array_like=True):
    """The chunks of one report, without the `removed` oldest ones."""

    number: int
    #: The event of each chunk, without the chunk.
    event: LogEvent
    chunks: tuple[bytes, ...]
    #: The bytes of the chunks, with CHUNK_OVERHEAD for each.
    size: int
    removed: int = 0


class Output(Struct, frozen=True, gc=False, array_like=True):
    """The chunks of an id, oldest first."""

    reports: tuple[ReportedChunks, ...]
    #: The number from which the reports are those of the current. Reports before it are those of the outcome.
    begin: int = 0
    #: The last chunk that a trim has removed.
    cut: Position = NOT_CUT


def reported(number: int, event: LogEvent, chunks: tuple[bytes, ...]) -> ReportedChunks:
    return ReportedChunks(number, event, chunks, _size(chunks))


def append(output: Output | None, report: ReportedChunks, most: int) -> Output:
    """Return the output with one more report. Remove the oldest chunks that exceed `most` bytes."""
    known = output or Output(())
    reports = (*known.reports, report)
    excess = sum(one.size for one in reports) - most
    return replace(known, reports=reports) if excess <= 0 else _trim(known, reports, excess)


def _size(chunks: Iterable[bytes]) -> int:
    return sum(len(chunk) + CHUNK_OVERHEAD for chunk in chunks)


def _trim(known: Output, reports: Sequence[ReportedChunks], excess: int) -> Output:
    """Remove as few of the oldest chunks as have `excess` bytes."""
    for position, one in enumerate(reports):
        for removed, chunk in enumerate(one.chunks, 1):
            excess -= _size([chunk])
            if excess > 0:
                continue
            cut = (one.number, one.removed + removed - 1)
            rest = without_oldest(reports[position:], (cut[0], cut[1] + 1))
            return replace(known, reports=rest, cut=cut)
    raise AssertionError("bug in dibs: a report has more output than an id keeps")


def without_oldest(reports: Iterable[ReportedChunks], first: Position) -> tuple[ReportedChunks, ...]:
    """Return the reports without the chunks before a position."""
    number, index = first
    rest = [one for one in reports if one.number >= number]
    if rest and rest[0].number == number and (more := index - rest[0].removed) > 0:
        chunks = rest[0].chunks[more:]
        rest[0] = replace(rest[0], chunks=chunks, size=_size(chunks), removed=index)
    return tuple(one for one in rest if one.chunks)


def after_end(output: Output) -> Output | None:
    """Return the output after the end of the current: all that its runs reported is now the outcome's."""
    rest = without_outcome(output)
    return rest and replace(rest, begin=rest.reports[-1].number + 1)


def without_outcome(output: Output) -> Output | None:
    """Return the output without the chunks of the outcome; None if there are no others."""
    rest = tuple(one for one in output.reports if one.number >= output.begin)
    if not rest:
        return None
    return replace(output, reports=rest, cut=output.cut if output.cut[0] >= output.begin else NOT_CUT)


def page(output: Output | None, after: str | None, limit: int, *, with_outcome: bool) -> EventPage:
    """Return up to `limit` chunks after an offset, as events. `with_outcome`: also those of the outcome.

    The page has `fell_off` if a trim has removed chunks after the offset.
    """
    if after == LATEST:
        return EventPage(events=(), offset=_end(output))
    position = parse_offset(after)
    if output is None:
        return EventPage(events=(), offset=after or "")
    first = 0 if with_outcome else output.begin
    number, index = max(position, (first, -1))
    found = tuple(
        islice(
            (
                (format_offset(one.number, at), replace(one.event, result=chunk))
                for one in output.reports
                if one.number >= number
                for at, chunk in enumerate(one.chunks, one.removed)
                if (one.number, at) > (number, index)
            ),
            limit,
        )
    )
    fell_off = after is not None and position < output.cut and output.cut[0] >= first
    return EventPage(events=found, offset=found[-1][0] if found else after or "", fell_off=fell_off)


def _end(output: Output | None) -> str:
    """Return the offset of the newest chunk; "" without one."""
    if output is None:
        return ""
    newest = output.reports[-1]
    return format_offset(newest.number, newest.removed + len(newest.chunks) - 1)
