"""The linearizability check of an example: the answers, the snapshots after each round, and the timeline.

A call and its events may become visible at different moments, so the search for an order leaves readings of
the log out. The events that each reader got are compared with the log at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from attrs import define, evolve, frozen

from dibs.model.events import LogEvent
from dibs.model.job import FAIL_SUFFIX, NewJob, Slot
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.oracle.matching import match, match_event, match_slot
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import PossibleWorld
from dibs_conformance.order_search import OrderSearch, UndecidedOrder
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.call_text import TimelineEntry, format_value, timeline_lines
from dibs_conformance.report.values import law_report
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs import VERBS
from dibs_conformance.verbs.actions import ClientCall, Round, Snapshot
from dibs_conformance.verbs.events import read_events
from dibs_conformance.verbs.verb import ANY_ID, CallPart, ids_in_arguments

MAX_TRIES = 8_000


@define
class LinearizeResult:
    """The result of the search: whether an order exists; if not, why the longest partial order failed."""

    linearizable: bool
    why: str = ""
    undecided: bool = False


def linearize(rounds: Sequence[Round], queue: str) -> LinearizeResult:
    """Search an order of the calls that explains all rounds."""
    raised = [call for round_ in rounds for call in round_.calls if call.completion == "raised"]
    if raised:
        return LinearizeResult(linearizable=False, why=f"{raised[0].operation} raised {raised[0].answer}")
    search = OrderSearch([RoundOfCalls(one, queue) for one in rounds], apply_part, MAX_TRIES)
    try:
        linearizable = search.explains(PossibleWorld())
    except UndecidedOrder:
        return LinearizeResult(linearizable=True, undecided=True)
    return LinearizeResult(linearizable=linearizable, why="" if linearizable else search.why)


def apply_part(world: PossibleWorld, part: CallPart, time: int) -> Iterator[PossibleWorld]:
    after = world.copy()
    after.oracle.numbers.next_call()
    after.oracle.now = time
    part.apply(after, part, time)
    yield after


@frozen
class RoundOfCalls:
    """A round of an example, for the search."""

    round: Round
    queue: str

    def open_parts(self, pending: tuple[CallPart, ...]) -> list[CallPart]:
        calls = self.round.calls
        return [*split_round(calls, pending), *(with_later_times(part, calls) for part in pending)]

    def check(self, world: PossibleWorld) -> PossibleWorld:
        after = world.copy()
        if self.round.snapshot is not None:
            check_snapshot(after, self.queue, self.round.snapshot)
        return after


def with_later_times(part: CallPart, calls: Sequence[ClientCall]) -> CallPart:
    """Return the part with the times of later calls added to `times`.

    An unanswered call may take effect at the time of any later call, as the storage's clock never goes back.
    """
    since = {call.now for call in calls if call.now > part.call.now}
    return evolve(part, times=tuple(sorted({*part.times, *since}))) if since else part


def split_round(calls: Sequence[ClientCall], pending: Sequence[CallPart] = ()) -> list[CallPart]:
    """Return the parts of a round's calls, each with the ids that overlapping calls touch.

    Refused calls have no parts, because they have no effect. But until its refusal a call may hold the lock
    of an id, which an overlapping claim skips. `pending` holds unanswered parts of earlier rounds, which may
    overlap these calls, too.
    """
    performed = [call for call in calls if call.completion != "refused"]
    unanswered = {id(part.call): part.call for part in pending}.values()
    parts: list[CallPart] = []
    for call in performed:
        overlapping = [other for other in (*calls, *unanswered) if other is not call and other.overlaps(call)]
        # The storage may or may not have kept the time of a call that was refused or changed no data.
        before = [other.now for other in calls if other.invoked <= call.returned]
        times = sorted({call.now, *(now for now in before if now > call.now)})
        ids = frozenset(id for other in overlapping for id in touched_ids(other))
        changing = any(
            other.operation == "configure" and other.completion != "refused" for other in overlapping
        )
        verb = VERBS[call.operation]
        parts += (
            evolve(
                part,
                # The parts of a reading may take effect in any order.
                index=0 if verb.reads else part.index,
                times=tuple(times),
                concurrent_ids=ids,
                settings_change=changing,
            )
            for part in verb.parts(call)
        )
    return parts


def touched_ids(call: ClientCall) -> Iterator[str]:
    """Yield the ids that a call may have changed."""
    verb = VERBS[call.operation]
    if not verb.reads:
        yield from ids_in_arguments(call)
        yield from verb.touches(call)


def check_snapshot(world: PossibleWorld, queue: str, snapshot: Snapshot) -> None:
    """Compare the oracle with a snapshot. Raises Mismatch."""
    world.oracle.numbers.next_call()
    world.oracle.now = max(world.oracle.now, snapshot.now)
    for id, slot in snapshot.slots.items():
        try:
            match_slot(
                world.numbering,
                (queue, id),
                world.oracle.get(queue, id),
                slot,
                max(snapshot.now, world.oracle.now),
            )
        except Mismatch as error:
            raise Mismatch(f"in the snapshot, {id!r}: {error}") from None
    match_fail_jobs(world, queue, snapshot.failed)
    for id, chunks in snapshot.outputs.items():
        check_output(world, queue, id, chunks)
    if snapshot.settings is not None:
        match(world.numbering, (queue, ""), world.oracle.queue(queue).settings, snapshot.settings, "settings")
    if snapshot.events is not None:
        check_log(world, queue, snapshot)


def check_output(world: PossibleWorld, queue: str, id: str, chunks: Sequence[LogEvent]) -> None:
    """Compare the output of an id, in order. Raises Mismatch."""
    record = world.oracle.queue(queue).ids.get(id)
    known = [] if record is None else record.visible_output(world.oracle.now)
    if len(known) != len(chunks):
        raise Mismatch(f"the output of {id!r} has {len(chunks)} chunks; expected {len(known)}")
    for chunk, event in zip(known, chunks, strict=True):
        match_event(world.numbering, queue, chunk.event, event)


def match_fail_jobs(world: PossibleWorld, queue: str, failed: dict[str, Slot] | object) -> None:
    """Give the oracle's fail jobs the ids that the storage has generated for them.

    Jobs are matched by the run that failed. Raises Mismatch for an extra or missing fail job.
    """
    assert isinstance(failed, dict)  # noqa: S101
    target = world.oracle.queue(queue + FAIL_SUFFIX)
    for id, slot in failed.items():
        if id not in target.ids:
            target.rename(match_origin(world, slot), id)
    missing = [id for id, known in target.ids.items() if known.current is not None and id not in failed]
    if missing:
        raise Mismatch(f"{len(missing)} fail jobs are missing")


def match_origin(world: PossibleWorld, slot: Slot) -> str:
    origin = slot.current.origin if slot.current is not None else None
    if origin is None:
        raise Mismatch("a fail job has no origin")
    fence = world.numbering.expected("fence", (origin.queue, origin.id), origin.fence)
    for id, known in world.oracle.queue(origin.queue + FAIL_SUFFIX).ids.items():
        made = known.current.origin if known.current is not None else None
        if id.startswith("?") and made is not None and (made.id, made.fence) == (origin.id, fence):
            return id
    raise Mismatch(f"a fail job names a run of {origin.id!r} that did not fail")


def check_log(world: PossibleWorld, queue: str, snapshot: Snapshot) -> None:
    """Compare the events of each id, in order. Raises Mismatch for an extra or missing event."""
    expected: dict[str, list[object]] = {}
    for logged in world.oracle.queue(queue).log:
        expected.setdefault(logged.event.id, []).append(logged.event)
    for event in snapshot.events or ():
        remaining = expected.get(event.id, [])
        if not remaining:
            raise Mismatch(f"the log has {event.kind} of {event.id!r}, which did not happen")
        match_event(world.numbering, queue, remaining.pop(0), event)  # type: ignore[arg-type]
    missing = [id for id, rest in expected.items() if rest]
    if missing:
        raise Mismatch(f"the log has no event of {missing[0]!r}")


def timeline(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the calls as lines, and then one line per id. Times are positions in the order of events."""
    calls = [call for round_ in rounds for call in round_.calls]
    times = sorted({time for call in calls for time in (call.invoked, call.returned)} - {inf})
    position = {inf: inf, **{time: at for at, time in enumerate(times)}}
    lines: list[str] = []
    for round_ in rounds:
        lines += timeline_lines(
            TimelineEntry(
                call.client,
                position[call.invoked],
                position[call.returned],
                f"{call_text(call)} -> {result_text(call)}",
            )
            for call in round_.calls
        )
        lines.append("-- all clients idle")
    return (*lines, *lines_by_id(calls))


def call_text(call: ClientCall) -> str:
    args = ", ".join(f"{name}={format_value(value)}" for name, value in call.args.items())
    return f"{call.operation}({args}) at {call.now}"


def result_text(call: ClientCall) -> str:
    if call.completion == "answered":
        return format_value(call.answer)
    return "no answer" if call.returned == inf else f"{call.completion}: {call.answer}"


def lines_by_id(calls: Sequence[ClientCall]) -> Iterator[str]:
    """Yield one line per id with the calls that touch it."""
    ids = sorted({id for call in calls for id in touched_ids(call)} - {ANY_ID})
    for id in ids:
        touching = [f"{call.client} {call.operation}" for call in calls if id in touched_ids(call)]
        yield f"id {format_value(id)}: {' · '.join(touching)}"


LAW = "nothing appears behind a reader"
SENTENCE = "Once a reader has received an offset, no event ever appears at or before it."


def reads_of_log(rounds: Iterable[Round]) -> list[ClientCall]:
    """Return the answered calls that read the log."""
    calls = (call for round_ in rounds for call in round_.calls)
    return [call for call in calls if call.operation == "events" and call.completion == "answered"]


def late_event(rounds: Sequence[Round]) -> str:
    """Return a sentence about an event that a reader missed, or "" if no reader missed one.

    The log of the last snapshot must have, between the offset that a reader started from and the offset that
    it got, exactly the events that it got.
    """
    last = rounds[-1].snapshot
    if last is None or last.events is None:
        return ""
    log = dict(zip(last.offsets, last.events, strict=True))
    for call in reads_of_log(rounds):
        after, until = call.args["after"], call.answer.offset
        got = dict(call.answer.events)
        expected = {at: event for at, event in log.items() if (after is None or at > after) and at <= until}
        missed = [at for at in expected if at not in got]
        if missed:
            event = log[missed[0]]
            return (
                f"{call.client} read the log up to the offset {until}; then the event {event.kind} of "
                f"{event.id!r} appeared at the offset {missed[0]}, which is not behind it"
            )
        if got != expected:
            return f"{call.client} read events up to the offset {until} that the log no longer has"
    return ""


# -- a transaction that commits late -----------------------------------------------------------------
#
# An entry may get its place in the log when it is written, and become visible when its transaction commits. A
# reader must not get an offset behind that place in between.

QUEUE = "late-commit"


def try_late_commit(plan: LevelPlan) -> Findings:
    """Read the log before and after a transaction commits, if the kit has a connection for one."""
    runner = LoopRunner()
    try:
        why = runner.run(missed_event(plan.locations))
    finally:
        runner.close()
    if why is None:
        return Findings()
    failures = (LawFailure(law=LAW, why=why),) if why else ()
    law = law_report(LAW, "3, Events", SENTENCE, 1, broken=bool(failures))
    return Findings(histories=1, laws=(law,), failures=failures)


async def missed_event(locations: Locations) -> str | None:
    """Return a sentence about an event that a reader missed, or "". None without a connection to try it."""
    location = locations.new()
    async with locations.open(location, "system") as storage:
        join = getattr(storage, "in_transaction", None)
        connecting = None if join is None else locations.connect(location)
        if join is None or connecting is None:
            return None
        await storage.configure(QUEUE, SettingsPatch(log_level="all"))
        async with connecting as connection:
            await join(connection).enqueue(QUEUE, request("early"))
            await storage.enqueue(QUEUE, request("late"))
            before = await read_events(storage, QUEUE)
            await connection.commit()
            after = await read_events(storage, QUEUE, after=before.offset)
        whole = await read_events(storage, QUEUE)
    got = {at for at, _ in (*before.events, *after.events)}
    missed = [event.id for at, event in whole.events if at not in got]
    return f"a reader missed the event of {missed[0]!r}, whose transaction committed late" if missed else ""


def request(id: str) -> list[EnqueueRequest]:
    return [EnqueueRequest(job=NewJob(id=id))]
