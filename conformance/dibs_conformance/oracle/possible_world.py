"""A possible world: the state of the oracle after the calls, applied in one of their possible orders.

The oracle is a simple reference implementation of the contract. It draws its own fences and revisions, so a
world also maps these numbers to those of the storage.
"""

from __future__ import annotations

from copy import copy

from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.oracle.numbering import (
    DrawnNumbers,
    Mismatch,
    NumberKind,
    NumberMap,
    NumberSource,
    Scope,
)
from dibs_conformance.oracle.queue import OracleQueue


class ConcurrentNumberMap(NumberMap):
    """A number map for overlapping calls.

    The numbers of one id must grow. The storage may draw numbers for different ids in any order.
    """

    def copy(self) -> ConcurrentNumberMap:
        other = ConcurrentNumberMap()
        other._actual = dict(self._actual)
        other._expected = dict(self._expected)
        other._revisions = {scope: list(pairs) for scope, pairs in self._revisions.items()}
        other._drawn = {key: copy_drawn(drawn) for key, drawn in self._drawn.items()}
        return other

    def _map_new(self, kind: NumberKind, scope: Scope, expected: int, actual: int) -> None:
        if (kind, scope, actual) in self._expected:
            raise Mismatch(f"{kind} {actual} of {scope[1]!r} was given before; expected a new number")
        queue, id = scope
        drawn = self._drawn.get((kind, queue))
        for other, number, owner in drawn.by_call.get(0, ()) if drawn is not None else ():
            if owner == id and (other < expected) != (number < actual):
                raise Mismatch(f"{kind} {actual} of {id!r} is out of order with {number}")
        self._add_drawn(kind, scope, expected, actual, 0)


def copy_drawn(drawn: DrawnNumbers) -> DrawnNumbers:
    return DrawnNumbers(
        list(drawn.calls),
        {call: list(drawn_numbers) for call, drawn_numbers in drawn.by_call.items()},
    )


class World:
    """The oracle after some calls, and the numbers of the storage that it knows."""

    def __init__(self, numbering: NumberMap) -> None:
        self.oracle = Oracle()
        self.numbering = numbering
        #: By queue and request_key: the id whose numbers a repeated enqueue returns.
        self.key_owners: dict[tuple[str, str], str] = {}


class PossibleWorld(World):
    """A world of overlapping calls. The search copies it before it tries another call."""

    numbering: ConcurrentNumberMap

    def __init__(self) -> None:
        super().__init__(ConcurrentNumberMap())

    def copy(self) -> PossibleWorld:
        other = PossibleWorld.__new__(PossibleWorld)
        other.oracle = copy_oracle(self.oracle)
        other.numbering = self.numbering.copy()
        other.key_owners = dict(self.key_owners)
        return other


def copy_oracle(oracle: Oracle) -> Oracle:
    """Return an independent copy of an oracle. Immutable values are shared."""
    numbers: NumberSource = copy(oracle.numbers)
    other = Oracle(numbers)
    other.now = oracle.now
    other.queues = {name: copy_queue(queue, numbers) for name, queue in oracle.queues.items()}
    return other


def copy_queue(queue: OracleQueue, numbers: NumberSource) -> OracleQueue:
    return OracleQueue(
        name=queue.name,
        numbers=numbers,
        settings=queue.settings,
        ids={id: copy_record(record) for id, record in queue.ids.items()},
        leases={name: copy(lease) for name, lease in queue.leases.items()},
        keys=dict(queue.keys),
        log=list(queue.log),
        starts=queue.starts.copy(),
        size_limited=queue.size_limited,
    )


def copy_record(record: IdRecord) -> IdRecord:
    return IdRecord(
        current=record.current,
        during_run=list(record.during_run),
        outcome=record.outcome,
        dropped=list(record.dropped),
        ever_dropped=list(record.ever_dropped),
    )
