"""The application of one call to a possible world (possible_world.py).

The oracle, a simple reference implementation of the contract, computes the expected answer. The storage's
answer must match it, or Mismatch is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dibs.model.job import Job
from dibs.model.results import ClaimResult
from dibs_conformance.concurrent.apply_queue import APPLY_TO_QUEUE
from dibs_conformance.concurrent.call_parts import CallPart
from dibs_conformance.concurrent.possible_world import PossibleWorld
from dibs_conformance.oracle import holding
from dibs_conformance.oracle.admission import is_admitted
from dibs_conformance.oracle.enqueueing import activate
from dibs_conformance.oracle.matching import match
from dibs_conformance.oracle.numbering import Mismatch, WrongTime
from dibs_conformance.oracle.queue import OracleQueue


def apply_part(world: PossibleWorld, part: CallPart, now: int) -> None:
    """Apply a part at time `now` (ms). Raises Mismatch if its answer differs from the oracle's."""
    world.oracle.numbers.next_call()
    world.oracle.now = now
    APPLY_OPERATION[part.operation](world, part, now)


def _check_answer(world: PossibleWorld, part: CallPart, id: str, expected: Any) -> None:
    if part.answered:
        match(world.numbering, (part.call.queue, id), expected, part.answer)


def _enqueue(world: PossibleWorld, part: CallPart, now: int) -> None:
    request = part.request
    [expected] = world.oracle.enqueue(part.call.queue, [request], now)
    owner = request.job.id
    if request.request_key is not None:
        if not expected.repeated:
            world.key_owners[request.request_key] = owner
        owner = world.key_owners.get(request.request_key, owner)
    _check_answer(world, part, owner, expected)


def _settle(world: PossibleWorld, part: CallPart, now: int) -> None:
    queue, id = part.call.queue, part.request.id
    fence = world.numbering.expected("fence", (queue, id), part.request.fence)
    [expected] = world.oracle.settle(queue, [replace(part.request, fence=fence)], now)
    _check_answer(world, part, id, expected)


def _finish(world: PossibleWorld, part: CallPart, now: int) -> None:
    queue, id = part.call.queue, part.request["id"]
    revision = world.numbering.expected("revision", (queue, id), part.request["revision"])
    expected = world.oracle.finish(queue, id, part.request["end"], revision, now)
    _check_answer(world, part, id, expected)


def _report(world: PossibleWorld, part: CallPart, _: int) -> None:
    queue, id = part.call.queue, part.request["id"]
    fence = world.numbering.expected("fence", (queue, id), part.request["fence"])
    request = part.request
    expected = world.oracle.report(queue, id, fence, request["progress"], request["memo"])
    _check_answer(world, part, id, expected)


# -- claims ------------------------------------------------------------------------------------------


def _claim(world: PossibleWorld, part: CallPart, now: int) -> None:
    lease, limit = part.request["lease"], part.request["limit"]
    if not part.answered:
        world.oracle.claim(part.call.queue, lease, limit, now)
        return
    queue, answer = world.oracle.queue(part.call.queue), part.answer
    holder = queue.lease(lease, now)
    if answer.lost or holder is None:
        if (holder is None) != answer.lost:
            raise Mismatch(
                f"claim answered lost={answer.lost}, but the lease is {'alive' if holder else 'dead'}"
            )
        return
    if answer.now != now:
        raise WrongTime(f"claim answered now={answer.now}; expected {now}")
    _activate_claimed_jobs(world, part, queue, answer, lease, holder.holder)


def _activate_claimed_jobs(
    world: PossibleWorld, part: CallPart, queue: OracleQueue, answer: ClaimResult, lease: str, holder: str
) -> None:
    """Activate the claimed jobs in the oracle. Raises Mismatch for a job not due, out of order or skipped."""
    now, limit = answer.now, part.request["limit"]
    full = _check_settings(part, queue, len(answer.jobs)) or len(answer.jobs) == limit
    if len(answer.jobs) > limit or len({job.id for job in answer.jobs}) < len(answer.jobs):
        raise Mismatch(f"claimed {[job.id for job in answer.jobs]} with the limit {limit}")
    keys = [claim_order(job, job.seq) for job in answer.jobs]
    if keys != sorted(keys):
        raise Mismatch(f"claimed {[job.id for job in answer.jobs]} in the wrong order")
    for job in answer.jobs:
        current = queue.record(job.id).current
        if current is None or current.run is not None or current.run_at > now:
            raise Mismatch(f"claimed {job.id!r}, which was not due")
        _check_skipped(world, part, queue, claim_order(job, job.seq))
        if not part.settings_change and not is_admitted(queue, current, now):
            raise Mismatch(f"claimed {job.id!r}, which the limits of the queue did not admit")
        actual = activate(queue, current, lease, holder, now)
        match(world.numbering, (queue.name, job.id), actual, job, f"claimed {job.id!r}")
    if not full:
        _check_skipped(world, part, queue, None)


def _check_skipped(
    world: PossibleWorld, part: CallPart, queue: OracleQueue, until: tuple[int, int, int] | None
) -> None:
    """Raise Mismatch if an admitted job stands before `until` in the order, or anywhere if that is None."""
    # An overlapping call may free room, and may charge a clock, before or after the claim has read them.
    if queue.settings.has_limits and (part.concurrent_ids or part.settings_change):
        return
    now = part.answer.now
    for job in queue.jobs():
        if job.run is not None or job.run_at > now or part.may_skip(job.id):
            continue
        seq = world.numbering.actual("seq", (queue.name, job.id), job.seq)
        passed = until is None or (seq is not None and claim_order(job, seq) < until)
        if passed and is_admitted(queue, job, now):
            raise Mismatch(f"claim skipped {job.id!r}, which was due")


def _check_settings(part: CallPart, queue: OracleQueue, taken: int) -> bool:
    """Return whether the settings of the queue allow the claim to take no more than the jobs `taken`.

    Raises Mismatch if they allow fewer. While a `configure` overlaps the claim, any settings may apply.
    """
    settings = queue.settings
    if part.settings_change:
        return True
    if settings.paused:
        if taken:
            raise Mismatch(f"claimed {taken} jobs from a paused queue")
        return True
    if settings.max_active is None:
        return False
    room = max(0, settings.max_active - len(queue.held()))
    if taken > room:
        raise Mismatch(f"claimed {taken} jobs; max_active {settings.max_active} leaves room for {room}")
    # An overlapping call may free room only after the claim has counted.
    return taken == room or bool(part.concurrent_ids)


def claim_order(job: Job, seq: int) -> tuple[int, int, int]:
    return -job.data.priority, job.run_at, seq


# -- leases ------------------------------------------------------------------------------------------


def _grant(world: PossibleWorld, part: CallPart, now: int) -> None:
    if part.answered:
        args = part.request
        world.oracle.grant([part.call.queue], part.answer.lease, args["ttl"], args["holder"], now)


def _renew(world: PossibleWorld, part: CallPart, now: int) -> None:
    queue = part.call.queue
    expected = world.oracle.renew([queue], part.request["lease"], part.request["ttl"], now)[queue]
    if part.answered:
        actual = part.answer[queue]
        if not actual.alive and not expected.alive:
            # As in a lost claim: the storage may read the time before another call ends the lease.
            return
        request = tuple(sorted(actual.cancel_requested)) if expected.alive else ()
        ends = actual.expires_at if expected.alive else 0
        match(
            world.numbering, (queue, ""), expected, replace(actual, cancel_requested=request, expires_at=ends)
        )


def _drop(world: PossibleWorld, part: CallPart, now: int) -> None:
    queue = part.call.queue
    expected = world.oracle.drop(queue, part.request["lease"], part.request["limit"], None, now)
    if part.answered and part.answer[queue] != expected and not part.concurrent_ids:
        raise Mismatch(f"drop left {part.answer[queue]}; expected {expected}")


def _reap(world: PossibleWorld, part: CallPart, now: int) -> None:
    queue = world.oracle.queue(part.call.queue)
    due = holding.expired_ids(queue, now)
    if not part.answered:
        world.oracle.reap(queue.name, len(due), due, now)
        return
    for actual in part.answer:
        if actual.id not in due:
            raise Mismatch(f"reaped {actual.id!r}, whose lease had not expired")
        due.remove(actual.id)
        match(world.numbering, (queue.name, actual.id), holding.reap_one(queue, actual.id, now), actual)
    passed = [id for id in due if not part.may_skip(id)]
    if passed:
        raise Mismatch(f"reap skipped {passed}")


# -- by id -------------------------------------------------------------------------------------------


def _cancel(world: PossibleWorld, part: CallPart, now: int) -> None:
    running = part.call.args["running"]
    [expected] = world.oracle.cancel(part.call.queue, [part.request], now, running=running)
    _check_answer(world, part, part.request, expected)


def _amend(world: PossibleWorld, part: CallPart, now: int) -> None:
    id = part.request["id"]
    _check_answer(world, part, id, world.oracle.amend(part.call.queue, id, part.request["patch"], now))


def _retry_failed(world: PossibleWorld, part: CallPart, now: int) -> None:
    [expected] = world.oracle.retry_failed(part.call.queue, [part.request], now)
    _check_answer(world, part, part.request, expected)


def _forget(world: PossibleWorld, part: CallPart, now: int) -> None:
    [expected] = world.oracle.forget(part.call.queue, [part.request], now)
    _check_answer(world, part, part.request, expected)


APPLY_OPERATION: dict[str, Callable[[PossibleWorld, CallPart, int], None]] = {
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
    **APPLY_TO_QUEUE,
}
