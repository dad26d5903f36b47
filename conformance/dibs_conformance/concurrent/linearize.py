"""The linearizability check: a search for an order of overlapping calls that explains all results.

The results are the answers of the calls, and the snapshots taken after each round of calls.

The search is depth-first, round by round. All calls of a round return before its snapshot, so the search only
reorders calls of one round. A call without an answer may take effect now, later or never. An example not
decided within `MAX_TRIES` steps counts as undecided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, evolve

from dibs_conformance.concurrent.check_snapshot import check_snapshot
from dibs_conformance.oracle.numbering import Mismatch, WrongTime
from dibs_conformance.oracle.possible_world import PossibleWorld
from dibs_conformance.verbs import VERBS
from dibs_conformance.verbs.calls import ClientCall, Round, Snapshot
from dibs_conformance.verbs.verb import CallPart, ids_in_arguments

MAX_TRIES = 8_000


class Undecided(Exception):
    """Raised if the search tried `MAX_TRIES` steps and found no order that explains the results."""


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
    search = Search(queue)
    try:
        linearizable = search.explains(PossibleWorld(), rounds, ())
    except Undecided:
        return LinearizeResult(linearizable=True, undecided=True)
    return LinearizeResult(linearizable=linearizable, why="" if linearizable else search.why)


@define
class Search:
    """The state of one search, with the longest partial order so far."""

    queue: str
    tries: int = 0
    why: str = "no order explains it"
    #: The longest partial order: its round, the number of parts explained in that round, and False if the
    #: next part failed only because of the time that was tried for it.
    furthest: tuple[int, int, bool] = (-1, -1, False)

    def explains(
        self,
        world: PossibleWorld,
        rounds: Sequence[Round],
        pending: tuple[CallPart, ...],
        round_number: int = 0,
    ) -> bool:
        """Return whether an order explains the rounds from `round_number` on."""
        if round_number == len(rounds):
            return True
        calls = rounds[round_number].calls
        open_parts = [*split_round(calls, pending), *(with_later_times(part, calls) for part in pending)]
        return any(
            self.explains(after, rounds, left, round_number + 1)
            for after, left in self._worlds_after_round(world, open_parts, rounds[round_number], round_number)
        )

    def _worlds_after_round(
        self, world: PossibleWorld, open_parts: list[CallPart], current: Round, round_number: int
    ) -> Iterator[tuple[PossibleWorld, tuple[CallPart, ...]]]:
        """Yield each world that explains this round, with the parts that may still take effect later."""
        if all(part.call.completion == "unknown" for part in open_parts):
            unchanged = world.copy()
            if self._matches_snapshot(unchanged, current.snapshot, round_number, len(open_parts)):
                yield unchanged, tuple(open_parts)
        for part in candidates(open_parts):
            rest = [other for other in open_parts if other is not part]
            for time in part.times:
                after = self._apply(world, part, time, round_number, len(rest))
                if after is not None:
                    yield from self._worlds_after_round(after, rest, current, round_number)
                    if part.is_pure:
                        return

    def _apply(
        self, world: PossibleWorld, part: CallPart, time: int, round_number: int, left: int
    ) -> PossibleWorld | None:
        self.tries += 1
        if self.tries > MAX_TRIES:
            raise Undecided
        after = world.copy()
        try:
            after.oracle.numbers.next_call()
            after.oracle.now = time
            part.apply(after, part, time)
        except Mismatch as error:
            why = f"{part.call.client}: {part.operation}: {error}"
            self._record_progress(round_number, -left, why, right_time=not isinstance(error, WrongTime))
            return None
        return after

    def _matches_snapshot(
        self, world: PossibleWorld, snapshot: Snapshot | None, round_number: int, left: int
    ) -> bool:
        try:
            if snapshot is not None:
                check_snapshot(world, self.queue, snapshot)
        except Mismatch as error:
            self._record_progress(round_number, 1 - left, str(error))
            return False
        return True

    def _record_progress(self, round_number: int, done: int, why: str, *, right_time: bool = True) -> None:
        progress = round_number, done, right_time
        if progress > self.furthest:
            self.furthest, self.why = progress, why


def candidates(open_parts: Sequence[CallPart]) -> list[CallPart]:
    """Return the parts of calls that may take effect next: pure reads first, then by time of their answer.

    A part may be next if no other open part was answered before the call of this part was sent.
    """
    first = min((part.call.returned for part in open_parts), default=0.0)
    ready = [
        part
        for part in open_parts
        if part.call.invoked <= first
        and not any(other.call is part.call and other.index < part.index for other in open_parts)
    ]
    return sorted(ready, key=lambda part: (not part.is_pure, part.call.returned))


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
                # Those of a reading may take effect in any order.
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
