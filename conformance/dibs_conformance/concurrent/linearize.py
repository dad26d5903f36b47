"""The linearizability check of an example: the answers, and the snapshots after each round of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, evolve, frozen

from dibs_conformance.concurrent.check_snapshot import check_snapshot
from dibs_conformance.oracle.possible_world import PossibleWorld
from dibs_conformance.order_search import OrderSearch, UndecidedOrder
from dibs_conformance.verbs import VERBS
from dibs_conformance.verbs.calls import ClientCall, Round
from dibs_conformance.verbs.verb import CallPart, ids_in_arguments

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
