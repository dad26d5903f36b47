"""The verb `drop`, which ends a lease and releases its jobs.

The contract lets a storage choose which jobs a limited `drop` or `reap` takes. The oracle gets the ids that
the storage chose, and checks that the choice was allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis.stateful import rule

from dibs.model.job import Slot
from dibs.model.requests import Release
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import return_to_waiting
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import OracleQueue, OracleWorld
from dibs_conformance.verbs.verb import (
    ANY_ID,
    CallEncoding,
    CallPart,
    StepFields,
    Verb,
    answered,
    read_scenes,
)


def step(
    oracle: Oracle, queue_name: str, lease: str, limit: int, chosen: Sequence[str] | None, now: int
) -> int:
    """Drop a lease and release up to `limit` of its jobs. Return the number of jobs left under it.

    `chosen` are the jobs that the storage released; None releases all. Raises Mismatch for a choice that the
    contract does not allow.
    """
    queue = oracle.queue(queue_name)
    found = queue.leases.get(lease)
    if found is None or now >= found.expires_at:
        return 0
    found.dropped = True
    held = [job.id for job, _ in queue.held(lease)]
    released = check_choice("drop", held, limit, held if chosen is None else chosen)
    queue.update_ring()
    in_ring = {turn.key for turn in queue.ring}
    for id in released:
        return_to_waiting(queue, queue.record(id), Release(), now)
    queue.update_ring()
    for turn in queue.ring:
        turn.drop = turn.drop if turn.key in in_ring else queue.numbers.call
    return len(held) - len(released)


def check_choice(verb: str, candidates: Sequence[str], limit: int, chosen: Sequence[str]) -> list[str]:
    """Return the chosen ids.

    Raises Mismatch unless they are `limit` of the candidates, or all candidates, without repetition.
    """
    due = min(limit, len(candidates))
    if len(chosen) != due or len(set(chosen)) != due or not set(chosen) <= set(candidates):
        raise Mismatch(f"{verb} took {sorted(chosen)}; expected {due} of {sorted(candidates)}")
    return list(chosen)


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    queue = part.call.queue
    expected = step(world.oracle, queue, part.request["lease"], part.request["limit"], None, now)
    if part.answered and part.answer[queue] != expected and not part.concurrent_ids:
        raise Mismatch(f"drop left {part.answer[queue]}; expected {expected}")


class DropCalls(LockstepCore):
    """`drop`, called in lockstep."""

    def drop(self, queues: Sequence[str], lease: str, limit: int) -> None:
        args = {"lease": lease, "limit": limit}
        before = {queue: held_ids(self.oracle.queue(queue), lease) for queue in queues}
        work = self.storage.drop(queues, lease, limit, now=self.now)
        left = self.call("drop", {"queues": queues, **args}, work)
        for queue in queues:
            slots = self.slots(queue)
            gone = [id for id in before[queue] if not is_held(slots[id], lease)]
            self.compare(queue, "", step(self.oracle, queue, lease, limit, gone, self.now), left[queue])
            self.compare_slots(queue)
            self.check_token(queue)


def held_ids(queue: OracleQueue, lease: str) -> list[str]:
    return [job.id for job, _ in queue.held(lease)]


def is_held(slot: Slot, lease: str) -> bool:
    run = slot.current.run if slot.current else None
    return run is not None and run.lease == lease


class DropRules(MachineBase):
    @rule(pick=some.picks, limit=some.limits)
    def drop(self, pick: int, limit: int) -> None:
        self.lockstep.drop(some.QUEUES, self.issued_lease(pick), limit)


def recorded_request(queues: Sequence[str], lease: str, *_: Any, **__: Any) -> StepFields:
    return [{"op": "drop", "queue": queue, "lease": lease} for queue in queues]


VERB = Verb(
    name="drop",
    section="3, Leases",
    weight=2,
    arguments=lambda action, _, state: {"lease": state.lease(action), "limit": 100},
    apply=apply,
    # Nothing in the answer tells which jobs were released.
    touches=lambda _: iter((ANY_ID,)),
    takes_queues=True,
    scenes=read_scenes("drop: runs with a successor / drop"),
    encoding=CallEncoding(recorded_request, answered("dropped")),
)
