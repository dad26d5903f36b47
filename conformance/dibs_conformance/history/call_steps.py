"""The conversion of storage calls to steps, the records of a history.

The arguments become steps when the call is sent, and the answer is added when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from dibs.model.job import Job, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import (
    ClaimResult,
    EnqueueResult,
    GrantResult,
    ReapedJob,
    RenewResult,
    SettleAndClaimResult,
    SettleResult,
)
from dibs_conformance.history.queue_steps import (
    QUEUE_ENCODINGS,
    CallEncoding,
    Fields,
    StepFields,
    digest,
    with_status,
)
from dibs_conformance.history.step import FOLLOWED, RecordedOutcome, RecordedSlot

ACTION_NAMES: Mapping[type[SettleAction], str] = {
    Complete: "complete",
    Fail: "fail",
    Cancelled: "cancelled",
    RetryLater: "retry",
    Release: "release",
    HandOff: "hand_off",
}


# -- enqueue -----------------------------------------------------------------------------------------


def enqueue_request(queue: str, requests: Sequence[EnqueueRequest], **_: Any) -> StepFields:
    return [enqueue_fields(queue, request) for request in requests]


def enqueue_fields(queue: str, request: EnqueueRequest) -> Fields:
    on_conflict = request.on_conflict
    return {
        "op": "enqueue",
        "queue": queue,
        "id": request.job.id,
        "key": request.request_key or "",
        "payload": digest(request.job.data.payload),
        "replaces": not isinstance(on_conflict, Update) or on_conflict.replaces,
        "resets": not isinstance(on_conflict, Update) or on_conflict.resets,
        "creates": not isinstance(on_conflict, Update) or on_conflict.create,
    }


def enqueue_reply(requested: StepFields, answer: Sequence[EnqueueResult]) -> StepFields:
    return [
        {
            **one,
            "status": result.status,
            "first": result.first,
            "revision": result.revision,
            "repeated": result.repeated,
        }
        for one, result in zip(requested, answer, strict=True)
    ]


# -- claim, settle, settle_and_claim, finish --------------------------------------------------------


def claim_request(queue: str, lease: str, limit: int, **_: Any) -> StepFields:
    return [{"op": "claim", "queue": queue, "lease": lease, "limit": limit}]


def claim_reply(requested: StepFields, answer: ClaimResult) -> StepFields:
    """Return one step per job, and one more if the claim took fewer jobs than its limit or lost its lease."""
    [claim] = requested
    taken = [claim_fields(claim, job, answer.now) for job in answer.jobs]
    if len(taken) >= claim["limit"]:
        return taken
    return [*taken, {**claim, "status": "lost" if answer.lost else "short", "now": answer.now}]


def claim_fields(claim: Fields, job: Job, now: int) -> Fields:
    run, origin = job.run, job.origin
    return {
        **claim,
        "id": job.id,
        "status": "taken",
        "now": now,
        "fence": run.fence if run else 0,
        "first": job.first,
        "revision": job.revision,
        "attempt": job.attempts,
        "retries": job.retries,
        "stalls": job.stalls,
        "timeouts": job.timeouts,
        "priority": job.data.priority,
        "job_key": job.data.key or "",
        "run_at": job.run_at,
        "seq": job.seq,
        "payload": digest(job.data.payload),
        "memo": digest(job.data.memo),
        "origin": (origin.queue, origin.id, origin.fence) if origin else None,
    }


def settle_request(queue: str, settlements: Sequence[Settlement], **_: Any) -> StepFields:
    return [fields for one in settlements for fields in settlement_fields(queue, one)]


def settlement_fields(queue: str, settlement: Settlement) -> list[Fields]:
    """Return a settlement and its follow-ups. The answer does not show the results of follow-ups."""
    fields = {"op": "settle", "queue": queue, "id": settlement.id, "fence": settlement.fence}
    return [{**fields, **action_fields(settlement.action)}, *follow_up_fields(settlement.action)]


def action_fields(action: SettleAction) -> Fields:
    fields: Fields = {"how": ACTION_NAMES[type(action)]}
    if isinstance(action, Complete):
        fields["result"] = digest(action.result)
    return fields


def follow_up_fields(action: SettleAction) -> list[Fields]:
    items = action.then if isinstance(action, Complete | Fail) else ()
    return [
        enqueue_fields(item.queue, EnqueueRequest(job=item.job, on_conflict=item.on_conflict))
        for item in items
    ]


def settle_reply(requested: StepFields, answer: Sequence[SettleResult]) -> StepFields:
    answers, steps, done = iter(answer), [], False
    for one in requested:
        if one["op"] == "settle":
            result = next(answers)
            steps.append({**one, "status": result.status, "revision": result.revision})
            done = result.status == "done"
        elif done:
            steps.append({**one, "status": FOLLOWED})
    return steps


def settle_and_claim_request(
    queue: str, settlements: Sequence[Settlement], lease: str, limit: int, **_: Any
) -> StepFields:
    return [*settle_request(queue, settlements), *claim_request(queue, lease, limit)]


def settle_and_claim_reply(requested: StepFields, answer: SettleAndClaimResult) -> StepFields:
    *settles, claim = requested
    return [*settle_reply(settles, answer.settled), *claim_reply([claim], answer.claim)]


def finish_request(queue: str, id: str, end: SettleAction, revision: int, **_: Any) -> StepFields:
    fields = {"op": "finish", "queue": queue, "id": id, "revision": revision, **action_fields(end)}
    return [fields, *follow_up_fields(end)]


def finish_reply(requested: StepFields, answer: str) -> StepFields:
    [finish, *follow_ups] = requested
    ended = [{**one, "status": FOLLOWED} for one in follow_ups]
    return [{**finish, "status": answer}, *(ended if answer == "done" else ())]


# -- leases ------------------------------------------------------------------------------------------


def grant_request(queues: Sequence[str], *_: Any, **__: Any) -> StepFields:
    return [{"op": "grant", "queue": queue} for queue in queues]


def grant_reply(requested: StepFields, answer: GrantResult) -> StepFields:
    fields = {"status": "granted", "lease": answer.lease, "now": answer.now, "until": answer.expires_at}
    return [{**one, **fields} for one in requested]


def renew_request(queues: Sequence[str], lease: str, *_: Any, **__: Any) -> StepFields:
    return [{"op": "renew", "queue": queue, "lease": lease} for queue in queues]


def renew_reply(requested: StepFields, answer: Mapping[str, RenewResult]) -> StepFields:
    return [{**one, **renewal_fields(answer[one["queue"]])} for one in requested]


def renewal_fields(answer: RenewResult) -> Fields:
    until = answer.expires_at if answer.alive else 0
    return {"status": "alive" if answer.alive else "lost", "now": answer.now, "until": until}


def drop_request(queues: Sequence[str], lease: str, *_: Any, **__: Any) -> StepFields:
    return [{"op": "drop", "queue": queue, "lease": lease} for queue in queues]


def reap_reply(requested: StepFields, answer: Sequence[ReapedJob]) -> StepFields:
    [reap] = requested
    reaped = [{**reap, "id": one.id, "fence": one.fence, "status": one.kind} for one in answer]
    return reaped or [{**reap, "status": "nothing"}]


# -- by id, and the queue ----------------------------------------------------------------------------


def by_ids(op: str) -> Callable[..., StepFields]:
    def request(queue: str, ids: Sequence[str], *, running: bool = False, **_: Any) -> StepFields:
        return [{"op": op, "queue": queue, "id": id, "running": running} for id in ids]

    return request


def amend_request(queue: str, id: str, patch: JobPatch, **_: Any) -> StepFields:
    payload = "" if patch.payload is UNSET else digest(patch.payload)
    return [{"op": "amend", "queue": queue, "id": id, "payload": payload}]


def report_request(
    queue: str, id: str, fence: int, *reported: bytes | None, memo: bytes | None = None, **_: Any
) -> StepFields:
    memo = reported[1] if len(reported) > 1 else memo
    stored = "" if memo is None else digest(memo or None)
    return [{"op": "report", "queue": queue, "id": id, "fence": fence, "memo": stored}]


def get_reply(requested: StepFields, answer: Sequence[Slot]) -> StepFields:
    return [
        {**one, "status": "read", "read": recorded_slot(slot)}
        for one, slot in zip(requested, answer, strict=True)
    ]


def recorded_slot(slot: Slot) -> RecordedSlot:
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    return RecordedSlot(
        current=(current.first, current.revision) if current else None,
        fence=current.run.fence if current and current.run else 0,
        successor=(successor.first, successor.revision) if successor else None,
        outcome=RecordedOutcome(
            outcome.kind, outcome.fence, outcome.first, outcome.revision, digest(outcome.result)
        )
        if outcome
        else None,
        dropped=slot.dropped,
    )


def counts_reply(requested: StepFields, answer: Mapping[str, Any]) -> StepFields:
    return [{**one, "status": "counted", "counts": count_fields(answer[one["queue"]])} for one in requested]


def count_fields(counts: Any) -> dict[str, int]:
    return {name: int(getattr(counts, name)) for name in counts.__struct_fields__}


CALL_ENCODINGS: dict[str, CallEncoding] = {
    "enqueue": CallEncoding(enqueue_request, enqueue_reply),
    "claim": CallEncoding(claim_request, claim_reply),
    "claim_blocking": CallEncoding(claim_request, claim_reply),
    "settle": CallEncoding(settle_request, settle_reply),
    "settle_and_claim": CallEncoding(settle_and_claim_request, settle_and_claim_reply),
    "finish": CallEncoding(finish_request, finish_reply),
    "grant": CallEncoding(grant_request, grant_reply),
    "renew": CallEncoding(renew_request, renew_reply),
    "drop": CallEncoding(
        drop_request, lambda requested, _: [{**one, "status": "dropped"} for one in requested]
    ),
    "reap": CallEncoding(lambda queue, *_, **__: [{"op": "reap", "queue": queue}], reap_reply),
    "cancel": CallEncoding(by_ids("cancel"), with_status),
    "retry_failed": CallEncoding(by_ids("retry_failed"), with_status),
    "forget": CallEncoding(
        by_ids("forget"),
        lambda requested, answer: with_status(
            requested, ["forgotten" if one else "not_found" for one in answer]
        ),
    ),
    "get": CallEncoding(by_ids("get"), get_reply),
    "report": CallEncoding(report_request, lambda requested, answer: with_status(requested, [answer])),
    "amend": CallEncoding(amend_request, lambda requested, answer: with_status(requested, [answer])),
    **QUEUE_ENCODINGS,
    "counts": CallEncoding(
        lambda queues, **_: [{"op": "counts", "queue": queue} for queue in queues], counts_reply
    ),
}
