"""The verb `events`, which reads the log of a queue from an offset."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dibs.model.events import LogEvent
from dibs.model.results import EventPage
from dibs.storage.protocol import LATEST, Storage
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MOST_PAGES, PAGE, LockstepCore, MachineBase, OutputReader
from dibs_conformance.oracle.matching import match_event
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import LoggedEvent
from dibs_conformance.steps import LoggedEntry
from dibs_conformance.verbs.actions import ClientAction, ClientCall, ClientState
from dibs_conformance.verbs.list import MAX_PAGES, EndlessPages
from dibs_conformance.verbs.verb import CallEncoding, StepFields, Verb

LONGEST_OFFSET = 64


async def read_events(
    storage: Storage, queue: str, *, after: str | None = None, limit: int = 100, now: int | None = None
) -> EventPage:
    """Read the log from an offset to its end. Return all events, and the offset of the last page."""
    found: list[tuple[str, LogEvent]] = []
    for _ in range(MAX_PAGES):
        page = await storage.events(queue, after=after, limit=limit, now=now)
        found += page.events
        after = page.offset
        if not page.events:
            return EventPage(events=tuple(found), offset=page.offset)
    raise EndlessPages(f"the log of {queue!r} does not end after {MAX_PAGES} pages")


async def read_output(storage: Storage, queue: str, id: str, now: int | None = None) -> list[LogEvent]:
    """Return all chunks of an id."""
    found: list[LogEvent] = []
    after = None
    for _ in range(MAX_PAGES):
        page = await storage.events(queue, after=after, id=id, now=now)
        found += [event for _, event in page.events]
        after = page.offset
        if not page.events:
            return found
    raise EndlessPages(f"the output of {id!r} does not end after {MAX_PAGES} pages")


def build_arguments(action: ClientAction, _: str, state: ClientState) -> dict[str, Any]:
    """Read from the start of the log, or from an offset that a client received."""
    offsets = [None, *state.offsets]
    return {"after": offsets[-1 - action.nth_newest % len(offsets)], "limit": action.limit}


def remember(state: ClientState, call: ClientCall) -> None:
    state.offsets.append(call.answer.offset)


@define
class Reader:
    """The position of a reader in one log: the offset in the storage, and the index in the oracle's log."""

    offset: str | None = None
    position: int = 0


class EventsCalls(LockstepCore):
    """`events`, called in lockstep."""

    def events(self, queue: str, reader: Reader, limit: int) -> None:
        """Read to the end of the log, and raise Mismatch unless it has the events of the oracle."""
        logged: list[LogEvent] = []
        # A reader that starts at the beginning of the log cannot miss trimmed events.
        fell_off = reader.offset is None
        for _ in range(MOST_PAGES):
            page = self._page(queue, reader, limit)
            fell_off = fell_off or page.fell_off
            logged += [event for _, event in page.events]
            reader.offset = page.offset
            if not page.events:
                break
        else:
            raise Mismatch(f"the log of {queue!r} does not end after {MOST_PAGES} pages")
        log = self.oracle.queue(queue).log
        expected = log[reader.position :]
        reader.position = len(log)
        self._compare_events(queue, expected, logged, fell_off=fell_off)

    def _page(self, queue: str, reader: Reader, limit: int) -> EventPage:
        args = {"after": reader.offset, "limit": limit}
        work = self.storage.events(queue, **self.options("events", **args), now=self.now)
        page = self.call("events", {"queue": queue, **args}, work)
        if len(page.events) > limit:
            raise Mismatch(f"{len(page.events)} events on a page, the limit is {limit}")
        offsets = [reader.offset or "", *(offset for offset, _ in page.events)]
        if any(one >= other for one, other in pairwise(offsets)) or page.offset < offsets[-1]:
            raise Mismatch(f"the offsets {offsets} of a page do not grow up to its end, {page.offset!r}")
        if len(page.offset) > LONGEST_OFFSET:
            raise Mismatch(f"an offset has {len(page.offset)} characters; expected at most {LONGEST_OFFSET}")
        return page

    def log_offsets(self, queue: str) -> list[str]:
        """Read the whole log, and return the offset of each event."""
        found: list[str] = []
        for _ in range(MOST_PAGES):
            after = found[-1] if found else None
            page = self.run_coroutine(self.storage.events(queue, after=after, limit=PAGE, now=self.now))
            found += [offset for offset, _ in page.events]
            if not page.events:
                return found
        raise Mismatch(f"the log of {queue!r} does not end after {MOST_PAGES} pages")

    def check_offsets(self, queue: str, before: list[str]) -> None:
        """Raise Mismatch unless the log has the same events as before a restart or a compaction."""
        after = self.log_offsets(queue)
        if lost := set(before) - set(after):
            raise Mismatch(f"the log of {queue!r} lost {len(lost)} events, at {sorted(lost)[:3]}")
        if back := set(after) - set(before):
            raise Mismatch(f"{len(back)} removed events are back in the log of {queue!r}")

    def skip_to_latest(self, queue: str, reader: Reader) -> None:
        """Move a reader to the present end of the log."""
        work = self.storage.events(queue, after=LATEST, limit=1, now=self.now)
        page = self.call("events", {"queue": queue, "after": LATEST}, work)
        if page.events:
            raise Mismatch(f"after LATEST the log has {page.events}; expected no events")
        reader.offset, reader.position = page.offset, len(self.oracle.queue(queue).log)

    def output(
        self, queue: str, id: str, reader: OutputReader, limit: int = PAGE, *, latest: bool = False
    ) -> None:
        """Read the output of an id to its end. With `latest`, move the reader there without reading."""
        if latest:
            args: dict[str, Any] = {"after": LATEST, "limit": limit, "id": id}
            work = self.storage.events(queue, **args, now=self.now)
            page = self.call("events", {"queue": queue, **args}, work)
            if page.events or page.fell_off:
                raise Mismatch(f"after LATEST the output has {page}; expected an empty page")
            reader.offset, reader.serial = page.offset, self.oracle.numbers.draw()
            return
        self.record("output", {"queue": queue, "id": id, "after": reader.offset}, None)
        self.read_output(queue, id, reader, limit)

    def _compare_events(
        self, queue: str, expected: list[LoggedEvent], logged: list[LogEvent], *, fell_off: bool
    ) -> None:
        """Raise Mismatch if the log lacks an event that is too young to be removed.

        If older events were removed before the reader got them, a page must have had `fell_off`. In a log
        with a small `log_bytes`, any number of the oldest events may be missing.
        """
        trimmed = len(expected) - len(logged)
        known = self.oracle.queue(queue)
        age = known.settings.log_age
        old = [known.size_limited or n.event.at + age <= self.now for n in expected[: max(trimmed, 0)]]
        if trimmed > 0 and not fell_off:
            raise Mismatch(f"a reader of {queue!r} missed trimmed events, and the page has no fell_off")
        if not all(old):
            found, wanted = summarize_events(logged), summarize_logged_events(expected)
            raise Mismatch(f"the log of {queue!r} lacks events: it has {found}; expected {wanted}")
        self._compare_order(queue, expected[max(trimmed, 0) :], logged)

    def _compare_order(self, queue: str, expected: list[LoggedEvent], logged: list[LogEvent]) -> None:
        """Raise Mismatch unless the events follow the order of the calls.

        The events of one call may have any order.
        """
        rest = list(expected)
        for event in logged:
            call = [n for n in rest if n.call == rest[0].call]
            same = [n for n in call if (n.event.kind, n.event.id) == (event.kind, event.id)]
            if not same:
                raise Mismatch(
                    f"event {event.kind} of {event.id!r}; expected {summarize_logged_events(call)}"
                )
            match_event(self.numbering, queue, same[0].event, event)
            rest.remove(same[0])


def summarize_events(events: list[LogEvent]) -> str:
    return ", ".join(f"{event.kind} {event.id[:9]!r}" for event in events) or "nothing"


def summarize_logged_events(logged: list[LoggedEvent]) -> str:
    return summarize_events([n.event for n in logged])


class EventsRules(MachineBase):
    @rule(queue=some.every_queue, limit=some.limits, jump=st.sampled_from((False, False, False, True)))
    def events(self, queue: str, limit: int, *, jump: bool) -> None:
        reader = self.readers.setdefault(queue, Reader())
        if jump:
            self.lockstep.skip_to_latest(queue, reader)
        self.lockstep.events(queue, reader, limit)

    @precondition(lambda self: self.session.output and bool(self.issued.runs))
    @rule(pick=some.picks, limit=some.limits)
    def output(self, pick: int, limit: int) -> None:
        """Read the output of an id that has run, with a reader that goes on."""
        queue, id, _ = self.issued_run(pick)
        self.lockstep.output(queue, id, self.output_readers.setdefault((queue, id), OutputReader()), limit)


def recorded_request(queue: str, *, after: str | None = None, **_: Any) -> StepFields:
    return [{"op": "events", "queue": queue, "after": after}]


def recorded_reply(requested: StepFields, answer: EventPage) -> StepFields:
    logged = tuple(
        LoggedEntry(offset, e.kind, e.id, e.fence, e.claimed_at, e.finished_at) for offset, e in answer.events
    )
    fields = {"status": "read", "logged": logged, "next": answer.offset, "fell_off": answer.fell_off}
    return [{**one, **fields} for one in requested]


VERB = Verb(
    name="events",
    section="3, Events; 3, The output of a run",
    weight=3,
    # The search for an order leaves it out; concurrent/linearize.py checks it.
    arguments=build_arguments,
    reads=True,
    call=read_events,
    remember=remember,
    encoding=CallEncoding(recorded_request, recorded_reply),
    valid={"after": None, "id": None},
)
