"""How a call of each verb is told as steps: what was asked, before it is sent, and what was answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

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
    SettingsPatch,
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
from dibs_conformance.history.step import FOLLOWED, End, Read

#: The fields of a step that are known so far.
Words = dict[str, Any]
Asked = Sequence[Words]

HOWS: Mapping[type[SettleAction], str] = {
    Complete: "complete",
    Fail: "fail",
    Cancelled: "cancelled",
    RetryLater: "retry",
    Release: "release",
    HandOff: "hand_off",
}


class Said(NamedTuple):
    """The two halves of a verb."""

    #: From the arguments of the call: the steps it will be, without an answer.
    asked: Callable[..., Asked]
    #: From those and the answer: the steps it was.
    told: Callable[[Asked, Any], Asked]


def digest(value: bytes | None) -> str:
    """A short name for bytes; None has one of its own."""
    return "none" if value is None else blake2b(value, digest_size=6).hexdigest()


def with_status(asked: Asked, answer: Sequence[str]) -> Asked:
    return [{**one, "status": status} for one, status in zip(asked, answer, strict=True)]


# -- enqueue -----------------------------------------------------------------------------------------


def enqueue_asked(queue: str, requests: Sequence[EnqueueRequest], **_: Any) -> Asked:
    return [enqueued(queue, request) for request in requests]


def enqueued(queue: str, request: EnqueueRequest) -> Words:
    how = request.on_conflict
    return {
        "op": "enqueue",
        "queue": queue,
        "id": request.job.id,
        "key": request.request_key or "",
        "payload": digest(request.job.data.payload),
        "replaces": not isinstance(how, Update) or how.data,
        "resets": not isinstance(how, Update) or how.resets,
    }


def enqueue_told(asked: Asked, answer: Sequence[EnqueueResult]) -> Asked:
    return [
        {**one, "status": a.status, "first": a.first, "revision": a.revision, "repeated": a.repeated}
        for one, a in zip(asked, answer, strict=True)
    ]


# -- claim, settle, settle_and_claim, finish --------------------------------------------------------


def claim_asked(queue: str, lease: str, limit: int, **_: Any) -> Asked:
    return [{"op": "claim", "queue": queue, "lease": lease, "limit": limit}]


def claim_told(asked: Asked, answer: ClaimResult) -> Asked:
    """One step for each job, and one when there was no more, or the lease was lost."""
    [claim] = asked
    taken = [claimed(claim, job, answer.now) for job in answer.jobs]
    if len(taken) >= claim["limit"]:
        return taken
    return [*taken, {**claim, "status": "lost" if answer.lost else "short", "now": answer.now}]


def claimed(claim: Words, job: Job, now: int) -> Words:
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
        "run_at": job.run_at,
        "seq": job.seq,
        "payload": digest(job.data.payload),
        "origin": (origin.queue, origin.id, origin.fence) if origin else None,
    }


def settle_asked(queue: str, settlements: Sequence[Settlement], **_: Any) -> Asked:
    return [words for one in settlements for words in settled(queue, one)]


def settled(queue: str, settlement: Settlement) -> list[Words]:
    """A settlement, and its follow-ups, of which nobody is told what they came to."""
    words = {"op": "settle", "queue": queue, "id": settlement.id, "fence": settlement.fence}
    return [{**words, **ended(settlement.action)}, *followed(settlement.action)]


def ended(how: SettleAction) -> Words:
    words: Words = {"how": HOWS[type(how)]}
    if isinstance(how, Complete):
        words["result"] = digest(how.result)
    elif isinstance(how, Fail):
        words["handled"] = how.handled
    return words


def followed(how: SettleAction) -> list[Words]:
    items = how.then if isinstance(how, Complete | Fail) else ()
    return [
        enqueued(item.queue, EnqueueRequest(job=item.job, on_conflict=item.on_conflict)) for item in items
    ]


def settle_told(asked: Asked, answer: Sequence[SettleResult]) -> Asked:
    answers, told, done = iter(answer), [], False
    for one in asked:
        if one["op"] == "settle":
            came_to = next(answers)
            told.append({**one, "status": came_to.status, "revision": came_to.revision})
            done = came_to.status == "done"
        elif done:
            told.append({**one, "status": FOLLOWED})
    return told


def settle_and_claim_asked(
    queue: str, settlements: Sequence[Settlement], lease: str, limit: int, **_: Any
) -> Asked:
    return [*settle_asked(queue, settlements), *claim_asked(queue, lease, limit)]


def settle_and_claim_told(asked: Asked, answer: SettleAndClaimResult) -> Asked:
    *settles, claim = asked
    return [*settle_told(settles, answer.settled), *claim_told([claim], answer.claim)]


def finish_asked(queue: str, id: str, end: SettleAction, revision: int, **_: Any) -> Asked:
    words = {"op": "finish", "queue": queue, "id": id, "revision": revision, **ended(end)}
    return [words, *followed(end)]


def finish_told(asked: Asked, answer: str) -> Asked:
    [finish, *follow_ups] = asked
    followed = [{**one, "status": FOLLOWED} for one in follow_ups]
    return [{**finish, "status": answer}, *(followed if answer == "done" else ())]


# -- leases ------------------------------------------------------------------------------------------


def grant_asked(queues: Sequence[str], *_: Any, **__: Any) -> Asked:
    return [{"op": "grant", "queue": queue} for queue in queues]


def grant_told(asked: Asked, answer: GrantResult) -> Asked:
    told = {"status": "granted", "lease": answer.lease, "now": answer.now, "until": answer.expires_at}
    return [{**one, **told} for one in asked]


def renew_asked(queues: Sequence[str], lease: str, *_: Any, **__: Any) -> Asked:
    return [{"op": "renew", "queue": queue, "lease": lease} for queue in queues]


def renew_told(asked: Asked, answer: Mapping[str, RenewResult]) -> Asked:
    return [{**one, **renewed(answer[one["queue"]])} for one in asked]


def renewed(answer: RenewResult) -> Words:
    until = answer.expires_at if answer.alive else 0
    return {"status": "alive" if answer.alive else "lost", "now": answer.now, "until": until}


def drop_asked(queues: Sequence[str], lease: str, *_: Any, **__: Any) -> Asked:
    return [{"op": "drop", "queue": queue, "lease": lease} for queue in queues]


def reap_told(asked: Asked, answer: Sequence[ReapedJob]) -> Asked:
    [reap] = asked
    reaped = [{**reap, "id": one.id, "fence": one.fence, "status": one.kind} for one in answer]
    return reaped or [{**reap, "status": "nothing"}]


# -- by id, and the queue ----------------------------------------------------------------------------


def by_ids(op: str) -> Callable[..., Asked]:
    def asked(queue: str, ids: Sequence[str], *, running: bool = False, **_: Any) -> Asked:
        return [{"op": op, "queue": queue, "id": id, "running": running} for id in ids]

    return asked


def amend_asked(queue: str, id: str, patch: JobPatch, **_: Any) -> Asked:
    payload = "" if patch.payload is UNSET else digest(patch.payload)
    return [{"op": "amend", "queue": queue, "id": id, "payload": payload}]


def configure_asked(queue: str, patch: SettingsPatch, **_: Any) -> Asked:
    said = {name: getattr(patch, name) for name in ("paused", "max_active")}
    return [{"op": "configure", "queue": queue, **{k: v for k, v in said.items() if v is not UNSET}}]


def get_told(asked: Asked, answer: Sequence[Slot]) -> Asked:
    return [{**one, "status": "read", "read": read(slot)} for one, slot in zip(asked, answer, strict=True)]


def read(slot: Slot) -> Read:
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    return Read(
        current=(current.first, current.revision) if current else None,
        fence=current.run.fence if current and current.run else 0,
        successor=(successor.first, successor.revision) if successor else None,
        outcome=End(outcome.kind, outcome.fence, outcome.first, outcome.revision, digest(outcome.result))
        if outcome
        else None,
        dropped=slot.dropped,
    )


def counts_told(asked: Asked, answer: Mapping[str, Any]) -> Asked:
    return [{**one, "status": "counted", "counts": counted(answer[one["queue"]])} for one in asked]


def counted(counts: Any) -> dict[str, int]:
    return {name: int(getattr(counts, name)) for name in counts.__struct_fields__}


SAYINGS: dict[str, Said] = {
    "enqueue": Said(enqueue_asked, enqueue_told),
    "claim": Said(claim_asked, claim_told),
    "claim_blocking": Said(claim_asked, claim_told),
    "settle": Said(settle_asked, settle_told),
    "settle_and_claim": Said(settle_and_claim_asked, settle_and_claim_told),
    "finish": Said(finish_asked, finish_told),
    "grant": Said(grant_asked, grant_told),
    "renew": Said(renew_asked, renew_told),
    "drop": Said(drop_asked, lambda asked, _: [{**one, "status": "dropped"} for one in asked]),
    "reap": Said(lambda queue, *_, **__: [{"op": "reap", "queue": queue}], reap_told),
    "cancel": Said(by_ids("cancel"), with_status),
    "retry_failed": Said(by_ids("retry_failed"), with_status),
    "forget": Said(
        by_ids("forget"),
        lambda asked, answer: with_status(asked, ["forgotten" if one else "not_found" for one in answer]),
    ),
    "get": Said(by_ids("get"), get_told),
    "amend": Said(amend_asked, lambda asked, answer: with_status(asked, [answer])),
    "configure": Said(configure_asked, lambda asked, _: with_status(asked, ["configured"])),
    "counts": Said(lambda queues, **_: [{"op": "counts", "queue": queue} for queue in queues], counts_told),
}
