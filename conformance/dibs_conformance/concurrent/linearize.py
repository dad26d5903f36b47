"""Is there an order? Calls that overlap may have taken effect in any; one must explain all that was told.

A depth-first search over orders, round by round: each ends with everybody at rest and a look at everything,
so only calls of one round are ever tried in other orders. A call without a reply may have happened or not,
also later. Bounded: an example that is not decided within `MOST_TRIES` steps is counted as undecided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dibs.model.job import FAIL_SUFFIX, Slot
from dibs_conformance.concurrent.apply import ANY, Part, parts, weigh
from dibs_conformance.concurrent.calls import Call, Look, Round
from dibs_conformance.concurrent.possible_world import World
from dibs_conformance.oracle.matching import match_event, match_slot
from dibs_conformance.oracle.numbering import Mismatch

MOST_TRIES = 8_000
READS = frozenset({"get"})


class Undecided(Exception):
    """There are more orders than were tried."""


@dataclass
class Verdict:
    """Whether there was an order; if not, how far the best one came, and what stood in its way."""

    kept: bool
    why: str = ""
    undecided: bool = False


def woven(rounds: Sequence[Round], queue: str) -> Verdict:
    """Find an order that explains the rounds."""
    raised = [call for one in rounds for call in one.calls if call.fate == "raised"]
    if raised:
        return Verdict(kept=False, why=f"{raised[0].verb} raised {raised[0].answer}")
    search = Search(queue)
    try:
        kept = search.explains(World(), rounds, ())
    except Undecided:
        return Verdict(kept=True, undecided=True)
    return Verdict(kept=kept, why="" if kept else search.why)


@dataclass
class Search:
    """One search, and the furthest it came."""

    queue: str
    tries: int = 0
    why: str = "no order explains it"
    furthest: tuple[int, int] = (-1, -1)
    _round: int = field(default=0)

    def explains(self, world: World, rounds: Sequence[Round], pending: tuple[Part, ...], at: int = 0) -> bool:
        """Whether some order explains the rounds from this one on."""
        if at == len(rounds):
            return True
        calls = rounds[at].calls
        todo = [*apart(calls, pending), *(later(part, calls) for part in pending)]
        return any(
            self.explains(after, rounds, left, at + 1)
            for after, left in self._orders(world, todo, rounds[at], at)
        )

    def _orders(
        self, world: World, todo: list[Part], one: Round, at: int
    ) -> Iterator[tuple[World, tuple[Part, ...]]]:
        """Every world that explains this round, with what may still happen later."""
        if all(part.call.fate == "unknown" for part in todo):
            seen = world.copy()
            if self._sees(seen, one.look, at, len(todo)):
                yield seen, tuple(todo)
        for part in candidates(todo):
            rest = [one for one in todo if one is not part]
            for time in part.times:
                after = self._after(world, part, time, at, len(rest))
                if after is not None:
                    yield from self._orders(after, rest, one, at)

    def _after(self, world: World, part: Part, time: int, at: int, left: int) -> World | None:
        self.tries += 1
        if self.tries > MOST_TRIES:
            raise Undecided
        after = world.copy()
        try:
            weigh(after, part, time)
        except Mismatch as error:
            self._note(at, -left, f"{part.call.client}: {part.verb}: {error}")
            return None
        return after

    def _sees(self, world: World, look: Look | None, at: int, left: int) -> bool:
        try:
            if look is not None:
                seen(world, self.queue, look)
        except Mismatch as error:
            self._note(at, 1 - left, str(error))
            return False
        return True

    def _note(self, at: int, done: int, why: str) -> None:
        if (at, done) > self.furthest:
            self.furthest, self.why = (at, done), why


def candidates(todo: Sequence[Part]) -> list[Part]:
    """What may have happened next: nothing left returned before it began. What was heard first, first."""
    first = min((part.call.returned for part in todo), default=0.0)
    ready = [
        part
        for part in todo
        if part.call.invoked <= first
        and not any(other.call is part.call and other.position < part.position for other in todo)
    ]
    return sorted(ready, key=lambda part: part.call.returned)


def later(part: Part, calls: Sequence[Call]) -> Part:
    """What is still under way may take effect at the time of any call since: the clock never steps back."""
    since = {call.now for call in calls if call.now > part.call.now}
    return replace(part, times=tuple(sorted({*part.times, *since}))) if since else part


def apart(calls: Sequence[Call], pending: Sequence[Part] = ()) -> list[Part]:
    """All parts of a round's calls, each with what happened beside it. What was refused did not happen.

    What nobody heard the end of in an earlier round may be under way beside them, too.
    """
    happened = [call for call in calls if call.fate != "refused"]
    unheard = {id(part.call): part.call for part in pending}.values()
    told: list[Part] = []
    for call in happened:
        during_run = [other for other in (*happened, *unheard) if other is not call and other.overlaps(call)]
        # A call that changed nothing, or was refused, may have told the storage the time or not.
        before = [other.now for other in calls if other.invoked <= call.returned]
        times = sorted({call.now, *(now for now in before if now > call.now)})
        ids = frozenset(id for other in during_run for id in touched(other))
        told += parts(call, tuple(times), ids)
    return told


def touched(call: Call) -> Iterator[str]:
    """The ids a call may have changed."""
    args = call.args
    yield from args.get("ids", ()) if call.verb not in READS else ()
    yield from (request.job.id for request in args.get("requests", ()))
    for settlement in args.get("settlements", ()):
        yield settlement.id
        yield from (then.job.id for then in getattr(settlement.action, "then", ()))
    if "id" in args:
        yield args["id"]
        yield from (then.job.id for then in getattr(args.get("end"), "then", ()))
    if call.verb == "drop" or (call.verb in TAKERS and call.fate != "answered"):
        yield ANY
    elif call.verb in TAKERS:
        yield from taken(call)


#: Verbs that choose their ids themselves.
TAKERS = frozenset({"claim", "settle_and_claim", "reap"})


def taken(call: Call) -> Iterator[str]:
    """The ids that an answered claim or reap chose."""
    if call.verb == "reap":
        yield from (told.id for told in call.answer)
    else:
        claim = call.answer.claim if call.verb == "settle_and_claim" else call.answer
        yield from (job.id for job in claim.jobs)


def seen(world: World, queue: str, look: Look) -> None:
    """Compare everything with what was seen at rest. Raises Differs."""
    world.oracle.numbers.next_call()
    world.oracle.now = max(world.oracle.now, look.now)
    for id, slot in look.slots.items():
        try:
            match_slot(
                world.numbering,
                (queue, id),
                world.oracle.get(queue, id),
                slot,
                max(look.now, world.oracle.now),
            )
        except Mismatch as error:
            raise Mismatch(f"afterwards {id!r}: {error}") from None
    name_fail_jobs(world, queue, look.failed)
    if look.events is not None:
        same_log(world, queue, look)


def name_fail_jobs(world: World, queue: str, failed: dict[str, Slot] | object) -> None:
    """Each fail job there is stands for one the oracle knows, by its origin."""
    assert isinstance(failed, dict)  # noqa: S101
    target = world.oracle.queue(queue + FAIL_SUFFIX)
    for id, slot in failed.items():
        if id not in target.ids:
            target.rename(match_origin(world, slot), id)
    gone = [id for id, known in target.ids.items() if known.current is not None and id not in failed]
    if gone:
        raise Mismatch(f"{len(gone)} fail jobs are missing")


def match_origin(world: World, slot: Slot) -> str:
    origin = slot.current.origin if slot.current is not None else None
    if origin is None:
        raise Mismatch("a fail job has no origin")
    fence = world.numbering.expected("fence", (origin.queue, origin.id), origin.fence)
    for id, known in world.oracle.queue(origin.queue + FAIL_SUFFIX).ids.items():
        made = known.current.origin if known.current is not None else None
        if id.startswith("?") and made is not None and (made.id, made.fence) == (origin.id, fence):
            return id
    raise Mismatch(f"a fail job tells of a run of {origin.id!r} that did not fail")


def same_log(world: World, queue: str, look: Look) -> None:
    """Each id's ends of attempts, in order, are in the log; nothing else is."""
    told: dict[str, list[object]] = {}
    for logged in world.oracle.queue(queue).log:
        told.setdefault(logged.event.id, []).append(logged.event)
    for event in look.events or ():
        mine = told.get(event.id, [])
        if not mine:
            raise Mismatch(f"the log has {event.kind} of {event.id!r}, which did not happen")
        match_event(world.numbering, queue, mine.pop(0), event)  # type: ignore[arg-type]
    missing = [id for id, rest in told.items() if rest]
    if missing:
        raise Mismatch(f"the log lacks an event of {missing[0]!r}")
