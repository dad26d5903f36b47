"""One possible world: what the oracle says after some order of calls, and which numbers stand for which."""

from __future__ import annotations

from copy import copy

from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.oracle.numbering import DrawnNumbers, Kind, Mismatch, NumberMap, NumberSource, Scope
from dibs_conformance.oracle.queue import Queue


class LooseNumberMap(NumberMap):
    """Numbers that grow for one id; of calls that overlap, across ids, either may have drawn first."""

    def copy(self) -> LooseNumberMap:
        other = LooseNumberMap()
        other._actual = dict(self._actual)
        other._expected = dict(self._expected)
        other._revisions = {scope: list(pairs) for scope, pairs in self._revisions.items()}
        other._drawn = {key: copy_drawn(drawn) for key, drawn in self._drawn.items()}
        return other

    def _pair(self, kind: Kind, scope: Scope, expected: int, actual: int) -> None:
        if (kind, scope, actual) in self._expected:
            raise Mismatch(f"{kind} {actual} of {scope[1]!r} was given before; a fresh one was due")
        queue, id = scope
        drawn = self._drawn.get((kind, queue))
        for other, number, owner in drawn.by_call.get(0, ()) if drawn is not None else ():
            if owner == id and (other < expected) != (number < actual):
                raise Mismatch(f"{kind} {actual} of {id!r} does not grow: {number} stands beside it")
        self._keep(kind, scope, expected, actual, 0)


def copy_drawn(drawn: DrawnNumbers) -> DrawnNumbers:
    return DrawnNumbers(list(drawn.calls), {call: list(told) for call, told in drawn.by_call.items()})


class World:
    """What there is after the calls so far, in one order of them."""

    def __init__(self) -> None:
        self.oracle = Oracle()
        self.numbering = LooseNumberMap()
        #: Whose numbers a request_key's answer carries.
        self.key_owners: dict[str, str] = {}

    def copy(self) -> World:
        other = World.__new__(World)
        other.oracle = copy_oracle(self.oracle)
        other.numbering = self.numbering.copy()
        other.key_owners = dict(self.key_owners)
        return other


def copy_oracle(oracle: Oracle) -> Oracle:
    """Return an oracle that knows the same; only what can change is copied."""
    numbers: NumberSource = copy(oracle.numbers)
    other = Oracle(numbers)
    other.now = oracle.now
    other.queues = {name: copy_queue(queue, numbers) for name, queue in oracle.queues.items()}
    return other


def copy_queue(queue: Queue, numbers: NumberSource) -> Queue:
    return Queue(
        name=queue.name,
        numbers=numbers,
        settings=queue.settings,
        ids={id: copy_record(known) for id, known in queue.ids.items()},
        leases={name: copy(lease) for name, lease in queue.leases.items()},
        keys=dict(queue.keys),
        log=list(queue.log),
    )


def copy_record(known: IdRecord) -> IdRecord:
    return IdRecord(
        current=known.current,
        during_run=list(known.during_run),
        outcome=known.outcome,
        dropped=list(known.dropped),
        ever_dropped=list(known.ever_dropped),
    )
