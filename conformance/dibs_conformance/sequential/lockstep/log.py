"""Reading the log of a queue from an offset, and comparing it with what the oracle logged."""

from __future__ import annotations

from dataclasses import dataclass

from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs.storage.protocol import LATEST
from dibs_conformance.oracle.matching import match_event
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import LoggedEvent
from dibs_conformance.sequential.lockstep.by_id import IdVerbs
from dibs_conformance.sequential.lockstep.core import MOST_PAGES

#: Told at level `all`, but how often is left open: they are not compared.
LEFT_OPEN = frozenset({"cancel_requested", "paused", "resumed", "configured"})


@dataclass
class Reader:
    """Where a reader of one log stands: the storage's offset, and the oracle's place."""

    offset: str | None = None
    position: int = 0


class Lockstep(IdVerbs):
    """Readers that go on where they stopped."""

    def events(self, queue: str, reader: Reader, limit: int) -> None:
        """Read on to the end of the log and compare."""
        told: list[LogEvent] = []
        # From the start of the log nobody can fall off.
        fell_off = reader.offset is None
        for _ in range(MOST_PAGES):
            page = self._page(queue, reader, limit)
            fell_off = fell_off or page.fell_off
            told += [event for _, event in page.events]
            reader.offset = page.offset
            if not page.events:
                break
        else:
            raise Mismatch(f"the log of {queue!r} has no end")
        log = self.oracle.queue(queue).log
        expected = [n for n in log[reader.position :] if n.event.kind not in LEFT_OPEN]
        reader.position = len(log)
        self._same(queue, expected, [e for e in told if e.kind not in LEFT_OPEN], fell_off=fell_off)

    def _page(self, queue: str, reader: Reader, limit: int) -> EventPage:
        args = {"after": reader.offset, "limit": limit}
        work = self.storage.events(queue, after=reader.offset, limit=limit, now=self.now)
        page = self.call("events", {"queue": queue, **args}, work)
        self.check_laws("events", queue, args, page)
        if len(page.events) > limit:
            raise Mismatch(f"{len(page.events)} events on a page, the limit is {limit}")
        return page

    def skip_to_latest(self, queue: str, reader: Reader) -> None:
        """Go on from where the log ends now."""
        work = self.storage.events(queue, after=LATEST, limit=1, now=self.now)
        page = self.call("events", {"queue": queue, "after": LATEST}, work)
        if page.events:
            raise Mismatch(f"after its end the log has {page.events}")
        self.check_laws("skip", queue, {}, page)
        reader.offset, reader.position = page.offset, len(self.oracle.queue(queue).log)

    def _same(self, queue: str, expected: list[LoggedEvent], told: list[LogEvent], *, fell_off: bool) -> None:
        """Nothing is missing, but what was old enough to be trimmed; a reader is told that it fell off."""
        trimmed = len(expected) - len(told)
        age = self.oracle.queue(queue).settings.log_age
        old = [n.event.at + age <= self.now for n in expected[: max(trimmed, 0)]]
        if trimmed > 0 and not fell_off:
            raise Mismatch(f"a reader of {queue!r} fell off the log and was not told")
        if not all(old):
            raise Mismatch(f"the log of {queue!r} lacks events: {summary(told)}, not {summary_of(expected)}")
        self._in_order(queue, expected[max(trimmed, 0) :], told)

    def _in_order(self, queue: str, expected: list[LoggedEvent], told: list[LogEvent]) -> None:
        """Calls come in order; the events of one call in any."""
        rest = list(expected)
        for event in told:
            call = [n for n in rest if n.call == rest[0].call]
            same = [n for n in call if (n.event.kind, n.event.id) == (event.kind, event.id)]
            if not same:
                raise Mismatch(f"event {event.kind} of {event.id!r}; the contract says {summary_of(call)}")
            match_event(self.numbering, queue, same[0].event, event)
            rest.remove(same[0])


def summary(events: list[LogEvent]) -> str:
    return ", ".join(f"{event.kind} {event.id[:9]!r}" for event in events) or "nothing"


def summary_of(logged: list[LoggedEvent]) -> str:
    return summary([n.event for n in logged])
