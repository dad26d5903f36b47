"""The output of an id on its page: the latest chunks, grouped by the runs that wrote them."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import groupby
from typing import Final

from attrs import define, field, frozen

from dibs.client.calls.run_logs import record_text
from dibs.client.calls.run_output import ChunkKind, split_chunk
from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.storage.protocol import Storage
from dibs.web.reading.source import Shown, Source, share, to_shown

#: Most chunks that a page shows, most ids whose reading goes on where the last one ended, and most pages of
#: chunks that one reading reads; a MiB of the smallest chunks takes 17.
MAX_CHUNKS: Final = 200
MAX_TAILS: Final = 100
MAX_PAGES: Final = 20
PAGE_SIZE: Final = 1_000


@frozen
class OutputLine:
    """A chunk. `at` is the time at which the storage got it, in ms since the epoch."""

    at: int
    kind: ChunkKind
    value: Shown


@frozen
class OutputRun:
    """The chunks of one run."""

    attempt: int
    lines: tuple[OutputLine, ...]


@frozen
class OutputView:
    """The latest chunks of an id, by run, the first run first."""

    runs: tuple[OutputRun, ...]
    #: True if older chunks are left out here, or were removed from the storage.
    is_cut: bool


@define
class _Tail:
    """The latest chunks of an id, and the offset behind them."""

    offset: str = ""
    is_cut: bool = False
    events: deque[LogEvent] = field(factory=lambda: deque(maxlen=MAX_CHUNKS))


@define(eq=False)
class Outputs:
    """The outputs of the ids that pages have shown lately: each reading goes on where the last one ended."""

    _tails: OrderedDict[tuple[str, str], _Tail] = field(factory=OrderedDict, init=False)

    async def read(
        self, source: Source, storage: Storage, queue: str, id: str, slot: Slot
    ) -> OutputView | None:
        """Return the output of the parts of a slot; None without any, and for a storage that keeps none."""
        parts = [part for part in (slot.current, slot.outcome) if part is not None]
        if not storage.capabilities.output or not parts:
            self._tails.pop((queue, id), None)
            return None
        tail = self._tails.setdefault((queue, id), _Tail())
        self._tails.move_to_end((queue, id))
        if len(self._tails) > MAX_TAILS:
            self._tails.popitem(last=False)
        await _read_on(tail, storage, queue, id)
        # An end and a forget remove the chunks of older jobs from the storage, and not from the tail.
        first = min(part.first for part in parts)
        shown = [event for event in tail.events if event.revision >= first]
        if not shown:
            return None
        most = share(len(shown))
        runs = tuple(
            OutputRun(attempt, tuple(_line(source, queue, event, most) for event in events))
            for (_, attempt), events in groupby(shown, key=lambda event: (event.fence, event.attempt))
        )
        return OutputView(runs, tail.is_cut)


async def _read_on(tail: _Tail, storage: Storage, queue: str, id: str) -> None:
    for _ in range(MAX_PAGES):
        page = await storage.events(queue, after=tail.offset, limit=PAGE_SIZE, id=id)
        tail.is_cut = tail.is_cut or page.fell_off or len(tail.events) + len(page.events) > MAX_CHUNKS
        tail.events.extend(event for _, event in page.events)
        tail.offset = page.offset
        if not page.events:
            return


def _line(source: Source, queue: str, event: LogEvent, most: int) -> OutputLine:
    kind, raw = split_chunk(event.result or b"")
    value = source.hide(queue, "output", source.decode(queue, raw))
    text = record_text(value) if kind == "log" else None
    shown = to_shown(value, most) if text is None else Shown(text[:most], is_cut=len(text) > most)
    return OutputLine(event.at, kind, shown)
