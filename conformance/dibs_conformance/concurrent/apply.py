"""Whether one call, taken next, is answered as the contract says: verb by verb, on one possible world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from dibs.model.job import Job
from dibs.model.results import ClaimResult
from dibs_conformance.concurrent.calls import Call
from dibs_conformance.concurrent.possible_world import World
from dibs_conformance.oracle import holding
from dibs_conformance.oracle.enqueueing import activate
from dibs_conformance.oracle.matching import match, match_slot
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import Queue

#: Stands for "any id": what a call touched is not known.
ANY = "*"


@dataclass(frozen=True, eq=False)
class Part:
    """What is atomic in a call: one item of a batch, or the whole call."""

    call: Call
    verb: str
    #: The item asked for, or the arguments of the call.
    asked: Any
    #: The item's answer; None when nobody heard it.
    answer: Any
    #: Its place in the call: items take effect in list order.
    position: int
    #: What the storage's time may have been: its own now, or that of a later one beside it.
    times: tuple[int, ...]
    #: Ids that calls under way at the same time touch. A claim or reap may pass over those.
    excused: frozenset[str]

    @property
    def heard(self) -> bool:
        return self.call.fate == "answered"

    def may_pass(self, id: str) -> bool:
        return id in self.excused or ANY in self.excused


def parts(call: Call, times: tuple[int, ...], excused: frozenset[str]) -> Iterator[Part]:
    """Take a call apart into what is atomic."""
    answered = call.fate == "answered"
    for position, (verb, asked, answer) in enumerate(items(call, answered=answered)):
        yield Part(call, verb, asked, answer, position, times, excused)


def items(call: Call, *, answered: bool) -> Iterator[tuple[str, Any, Any]]:
    batch = BATCHES.get(call.verb)
    if batch is None:
        yield call.verb, call.args, call.answer
        return
    answers = call.answer
    if call.verb == "settle_and_claim":
        answers = call.answer.settled if answered else None
    asked = call.args[batch]
    for index, one in enumerate(asked):
        yield (
            "settle" if call.verb == "settle_and_claim" else call.verb,
            one,
            answers[index] if answered else None,
        )
    if call.verb == "settle_and_claim":
        yield "claim", call.args, call.answer.claim if answered else None


#: The argument that holds the items.
BATCHES = {
    "enqueue": "requests",
    "settle": "settlements",
    "settle_and_claim": "settlements",
    "cancel": "ids",
    "retry_failed": "ids",
    "forget": "ids",
}


def weigh(world: World, part: Part, now: int) -> None:
    """Let a part take effect at this time. Raises Differs where the contract says another answer."""
    world.oracle.numbers.next_call()
    world.oracle.now = now
    VERBS[part.verb](world, part, now)


def _agree(world: World, part: Part, id: str, expected: Any) -> None:
    if part.heard:
        match(world.numbering, (part.call.queue, id), expected, part.answer)


def _enqueue(world: World, part: Part, now: int) -> None:
    request = part.asked
    [said] = world.oracle.enqueue(part.call.queue, [request], now)
    owner = request.job.id
    if request.request_key is not None:
        if not said.repeated:
            world.key_owners[request.request_key] = owner
        owner = world.key_owners.get(request.request_key, owner)
    _agree(world, part, owner, said)


def _settle(world: World, part: Part, now: int) -> None:
    queue, id = part.call.queue, part.asked.id
    fence = world.numbering.expected("fence", (queue, id), part.asked.fence)
    [said] = world.oracle.settle(queue, [replace(part.asked, fence=fence)], now)
    _agree(world, part, id, said)


def _finish(world: World, part: Part, now: int) -> None:
    queue, id = part.call.queue, part.asked["id"]
    revision = world.numbering.expected("revision", (queue, id), part.asked["revision"])
    said = world.oracle.finish(queue, id, part.asked["end"], revision, now)
    _agree(world, part, id, said)


def _report(world: World, part: Part, _: int) -> None:
    queue, id = part.call.queue, part.asked["id"]
    fence = world.numbering.expected("fence", (queue, id), part.asked["fence"])
    _agree(world, part, id, world.oracle.report(queue, id, fence, part.asked["progress"]))


# -- claims ------------------------------------------------------------------------------------------


def _claim(world: World, part: Part, now: int) -> None:
    lease, limit = part.asked["lease"], part.asked["limit"]
    if not part.heard:
        world.oracle.claim(part.call.queue, lease, limit, now)
        return
    queue, answer = world.oracle.queue(part.call.queue), part.answer
    holder = queue.lease(lease, now)
    if answer.lost or holder is None:
        if (holder is None) != answer.lost:
            raise Mismatch(f"claim answered lost={answer.lost}; the lease {'lives' if holder else 'is dead'}")
        return
    if answer.now != now:
        raise Mismatch(f"claim answered now {answer.now}, and it was {now}")
    _taken(world, part, queue, answer, lease, holder.holder)


def _taken(world: World, part: Part, queue: Queue, answer: ClaimResult, lease: str, holder: str) -> None:
    """Make what was claimed active, each due and in order, and see whether anything was passed over."""
    now, limit = answer.now, part.asked["limit"]
    if len(answer.jobs) > limit or len({job.id for job in answer.jobs}) < len(answer.jobs):
        raise Mismatch(f"claimed {[job.id for job in answer.jobs]}, the limit is {limit}")
    keys = [urgency(job, job.seq) for job in answer.jobs]
    if keys != sorted(keys):
        raise Mismatch(f"claimed {[job.id for job in answer.jobs]} in the wrong order")
    for job in answer.jobs:
        current = queue.record(job.id).current
        if current is None or current.run is not None or current.run_at > now:
            raise Mismatch(f"claimed {job.id!r}, which was not due")
        told = activate(queue, current, lease, holder, now)
        match(world.numbering, (queue.name, job.id), told, job, f"claimed {job.id!r}")
    full = len(answer.jobs) == limit
    for job in queue.jobs():
        if job.run is None and job.run_at <= now and not part.may_pass(job.id):
            seq = world.numbering.actual("seq", (queue.name, job.id), job.seq)
            if not full or (keys and seq is not None and urgency(job, seq) < keys[-1]):
                raise Mismatch(f"claim passed over {job.id!r}, which was due")


def urgency(job: Job, seq: int) -> tuple[int, int, int]:
    return -job.data.priority, job.run_at, seq


# -- leases ------------------------------------------------------------------------------------------


def _grant(world: World, part: Part, now: int) -> None:
    if part.heard:
        args = part.asked
        world.oracle.grant([part.call.queue], part.answer.lease, args["ttl"], args["holder"], now)


def _renew(world: World, part: Part, now: int) -> None:
    queue = part.call.queue
    said = world.oracle.renew([queue], part.asked["lease"], part.asked["ttl"], now)[queue]
    if part.heard:
        told = part.answer[queue]
        asked = tuple(sorted(told.cancel_requested)) if said.alive else ()
        ends = told.expires_at if said.alive else 0
        match(world.numbering, (queue, ""), said, replace(told, cancel_requested=asked, expires_at=ends))


def _drop(world: World, part: Part, now: int) -> None:
    queue = part.call.queue
    left = world.oracle.drop(queue, part.asked["lease"], part.asked["limit"], None, now)
    if part.heard and part.answer[queue] != left and not part.excused:
        raise Mismatch(f"drop left {part.answer[queue]}; expected {left}")


def _reap(world: World, part: Part, now: int) -> None:
    queue = world.oracle.queue(part.call.queue)
    due = holding.expired(queue, now)
    if not part.heard:
        world.oracle.reap(queue.name, len(due), due, now)
        return
    for told in part.answer:
        if told.id not in due:
            raise Mismatch(f"reaped {told.id!r}, which was under no expired lease")
        due.remove(told.id)
        match(world.numbering, (queue.name, told.id), holding.reap_one(queue, told.id, now), told)
    passed = [id for id in due if not part.may_pass(id)]
    if passed:
        raise Mismatch(f"reap passed over {passed}")


# -- by id -------------------------------------------------------------------------------------------


def _cancel(world: World, part: Part, now: int) -> None:
    running = part.call.args["running"]
    [said] = world.oracle.cancel(part.call.queue, [part.asked], now, running=running)
    _agree(world, part, part.asked, said)


def _amend(world: World, part: Part, now: int) -> None:
    id = part.asked["id"]
    _agree(world, part, id, world.oracle.amend(part.call.queue, id, part.asked["patch"], now))


def _retry_failed(world: World, part: Part, now: int) -> None:
    [said] = world.oracle.retry_failed(part.call.queue, [part.asked], now)
    _agree(world, part, part.asked, said)


def _forget(world: World, part: Part, now: int) -> None:
    [said] = world.oracle.forget(part.call.queue, [part.asked], now)
    _agree(world, part, part.asked, said)


def _get(world: World, part: Part, now: int) -> None:
    if part.heard:
        for id, slot in zip(part.asked["ids"], part.answer, strict=True):
            known = world.oracle.get(part.call.queue, id)
            match_slot(world.numbering, (part.call.queue, id), known, slot, now)


VERBS: dict[str, Callable[[World, Part, int], None]] = {
    "enqueue": _enqueue,
    "claim": _claim,
    "settle": _settle,
    "finish": _finish,
    "report": _report,
    "grant": _grant,
    "renew": _renew,
    "drop": _drop,
    "reap": _reap,
    "cancel": _cancel,
    "amend": _amend,
    "retry_failed": _retry_failed,
    "forget": _forget,
    "get": _get,
}
