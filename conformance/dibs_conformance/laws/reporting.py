"""Laws about the log, the counts and the leases."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

from msgspec import UNSET

from dibs.model.events import AttemptKind, LogEvent
from dibs.model.job import Slot
from dibs.model.requests import Complete, Settings, SettingsPatch
from dibs.model.results import ClaimResult, Counts, EventPage, GrantResult, RenewResult
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory

LONGEST_OFFSET = 64
ATTEMPT_KINDS = frozenset(get_args(AttemptKind))
RETURN_KINDS = frozenset({"retried", "stalled", "timed_out", "released"})


class OffsetsGrow(Law):
    name = "offsets only grow"
    section = "3, Events"
    sentence = "After a reader got an offset, no new event appears at or before it."

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, dict[str, LogEvent]] = {}
        self.handed: dict[str, str] = {}

    def begin(self) -> None:
        self.known, self.handed = {}, {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "events":
            return
        page: EventPage = call.answer
        offsets = [offset for offset, _ in page.events]
        ordered = [call.args["after"] or "", *offsets]
        if offsets:
            self.check(
                all(a < b for a, b in pairwise(ordered)), "the offsets on a page do not grow: {}", ordered
            )
            self.check(
                page.offset >= offsets[-1], "the page ends at {!r}, before {!r}", page.offset, offsets[-1]
            )
        self.check(
            len(page.offset) <= LONGEST_OFFSET, "an offset has {} characters; at most 64", len(page.offset)
        )
        self._check_no_older_event(call.queue, page)
        self.handed[call.queue] = max(self.handed.get(call.queue, ""), page.offset)

    def _check_no_older_event(self, queue: str, page: EventPage) -> None:
        known = self.known.setdefault(queue, {})
        for offset, event in page.events:
            if offset <= self.handed.get(queue, ""):
                self.check(
                    known.get(offset) == event, "{} appeared at {!r}, behind a reader", event.kind, offset
                )
            known[offset] = event


class OneEventEach(Law):
    name = "one event for each attempt"
    section = "3, Events"
    sentence = "Each end of an attempt has exactly one event, of its kind, unless the log was off."

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.off: set[str] = set()
        #: The ended attempts whose event was not read yet: their kind of end, and the time.
        self.due: dict[tuple[str, str, int], tuple[str | None, int]] = {}
        self.age: dict[str, int] = {}
        #: Queues whose log may have been trimmed by its size. A reader from the start gets no `fell_off`.
        self.size_limited: set[str] = set()
        self.read_offsets: dict[tuple[str, str, int], str] = {}

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for closed in history.closed:
            if closed.queue not in self.off:
                self.due[closed.queue, closed.run.job.id, closed.run.fence] = (closed.kind, call.now)
        if call.verb == "configure":
            self._apply_settings(call.queue, call.args["patch"])
        elif call.verb == "events":
            self._check_page(call.queue, call.answer, call.now)
        elif call.verb == "skip":
            self._forget_due_events(call.queue)

    def _apply_settings(self, queue: str, patch: SettingsPatch) -> None:
        if patch.log_level is not UNSET:
            (self.off.add if patch.log_level == "off" else self.off.discard)(queue)
        if patch.log_age is not UNSET:
            self.age[queue] = patch.log_age
        if patch.log_bytes is not UNSET and patch.log_bytes < Settings().log_bytes:
            self.size_limited.add(queue)

    def _forget_due_events(self, queue: str) -> None:
        """Expect no more events for the ended attempts of a queue, because the reader skipped them."""
        self.due = {key: kind for key, kind in self.due.items() if key[0] != queue}

    def _check_page(self, queue: str, page: EventPage, now: int) -> None:
        for offset, event in page.events:
            if event.kind in ATTEMPT_KINDS and event.fence:
                key = (queue, event.id, event.fence)
                self.check(
                    self.read_offsets.setdefault(key, offset) == offset, "two events for the attempt {}", key
                )
                self._check_kind(event, self.due.pop(key, (event.kind, now))[0])
        if page.fell_off:
            self._forget_due_events(queue)
        elif not page.events and queue not in self.size_limited:
            young = now - self.age.get(queue, 86_400_000)
            missing = [key for key, (_, at) in self.due.items() if key[0] == queue and at > young]
            self.check(not missing, "no event for the attempts {}", missing)

    def _check_kind(self, event: LogEvent, ended: str | None) -> None:
        fits = event.kind == ended if ended is not None else event.kind in RETURN_KINDS
        self.check(
            fits,
            "the event of the attempt of {!r} is {}; expected {}",
            event.id,
            event.kind,
            ended or "a return",
        )


class ResultsLogged(Law):
    name = "a result is in the log as configured"
    section = "3, Events"
    sentence = "A completed event has the result if it is not longer than log_results; else it has none."

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.most: dict[str, int] = {}
        #: The result that the event of a run must have, by queue, id and fence.
        self.expected: dict[tuple[str, str, int], bytes | None] = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "configure" and call.args["patch"].log_results is not UNSET:
            self.most[call.queue] = call.args["patch"].log_results
        elif call.verb == "settle":
            for settlement, answer in zip(call.args["settlements"], call.answer, strict=True):
                if isinstance(settlement.action, Complete) and answer.status == "done":
                    self._expect(call.queue, settlement.id, settlement.fence, settlement.action.result)
        elif call.verb == "finish" and call.answer == "done" and isinstance(call.args["end"], Complete):
            run = history.history_of(call.queue, call.args["id"]).open
            if run is not None and run.covers(call.args["revision"]):
                self._expect(call.queue, run.job.id, run.fence, call.args["end"].result)
        elif call.verb == "events":
            self._check_page(call.queue, call.answer)

    def _expect(self, queue: str, id: str, fence: int, result: bytes | None) -> None:
        most = self.most.get(queue, 0)
        fits = result is not None and most > 0 and len(result) <= most
        self.expected.setdefault((queue, id, fence), result if fits else None)

    def _check_page(self, queue: str, page: EventPage) -> None:
        for _, event in page.events:
            if event.kind == "completed":
                wanted = self.expected.get((queue, event.id, event.fence))
                self.check(event.result == wanted, "the event of {!r} has {!r}", event.id, event.result)
            else:
                self.check(event.result is None, "the event {} of {!r} has a result", event.kind, event.id)


class CountsAgree(Law):
    name = "counts match the jobs"
    section = "3, count"
    sentence = "Counts of at most 10,000 are exactly the ids in each state."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "counts" or not call.slots:
            return
        counts: Counts = call.answer
        for state, size in count_states(call.slots.values(), call.now).items():
            self.check(
                getattr(counts, state) == size,
                "the count of {} is {}; expected {}",
                state,
                getattr(counts, state),
                size,
            )


def count_states(slots: object, now: int) -> dict[str, int]:
    """Return the number of slots in each state. One slot may count in several states."""
    sizes = dict.fromkeys(Counts.__struct_fields__[:8], 0)
    for slot in slots:  # type: ignore[attr-defined]
        for state in states_of(slot, now):
            sizes[state] += 1
    return sizes


def states_of(slot: Slot, now: int) -> list[str]:
    job, states = slot.current, []
    if job is not None and job.run is None:
        states = ["waiting", "scheduled"] if job.run_at > now else ["waiting"]
    elif job is not None and job.run is not None:
        states = ["active"] if job.run.lease is not None else ["active", "handed_off"]
    if slot.successor is not None:
        states.append("blocked")
    return [*states, slot.outcome.kind] if slot.outcome is not None else states


class LeaseLifetimes(Law):
    name = "leases end exactly at their expiry"
    section = "3, Leases"
    sentence = (
        "A lease is alive while now < expiry; expired or dropped, it stays lost; no renewal shortens it."
    )

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        #: The expiry of each lease, by queue and lease. 0 for a dropped lease.
        self.ends: dict[tuple[str, str], int] = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "grant":
            self._check_grant(call.args["queues"], call.answer)
        elif call.verb == "renew":
            self._check_renewal(call.queue, call.args["lease"], call.args["ttl"], call.answer)
        elif call.verb == "drop":
            self.ends[call.queue, call.args["lease"]] = 0
        elif call.verb == "claim":
            self._check_claim(call.queue, call.args["lease"], call.answer)

    def _check_grant(self, queues: list[str], granted: GrantResult) -> None:
        for queue in queues:
            key = (queue, granted.lease)
            self.check(key not in self.ends, "the lease {} was granted twice", granted.lease)
            self.ends[key] = granted.expires_at

    def _check_renewal(self, queue: str, lease: str, ttl: int, answer: RenewResult) -> None:
        ends = self.ends.get((queue, lease), 0)
        alive = answer.now < ends
        self.check(
            answer.alive == alive,
            "renew returned alive={} at {} for a lease until {}",
            answer.alive,
            answer.now,
            ends,
        )
        if alive:
            until = max(ends, answer.now + ttl)
            self.check(
                answer.expires_at == until,
                "renew returned the expiry {}; expected {}",
                answer.expires_at,
                until,
            )
            self.ends[queue, lease] = until

    def _check_claim(self, queue: str, lease: str, answer: ClaimResult) -> None:
        alive = answer.now < self.ends.get((queue, lease), 0)
        self.check(
            answer.lost != alive,
            "claim returned lost={} at {}, but alive={} holds for the lease",
            answer.lost,
            answer.now,
            alive,
        )
