"""The linearizability check: it accepts calls that some order explains, and rejects others."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
from attrs import evolve

from dibs.model.job import ActiveRun, Job, JobData, NewJob, Slot
from dibs.model.requests import EnqueueRequest
from dibs.model.results import ClaimResult, EnqueueResult, GrantResult, RenewResult
from dibs_conformance.concurrent.linearize import linearize
from dibs_conformance.verbs.actions import ClientCall, Completion, Round, Snapshot

NOW = 1000
LEASE = "f" * 32


def call(client: str, operation: str, began: float, ended: float, answer: Any, **args: Any) -> ClientCall:
    completion: Completion = "unknown" if ended == inf else "answered"
    return ClientCall(
        client=client,
        operation=operation,
        queue="q",
        args=args,
        now=NOW,
        invoked=began,
        returned=ended,
        completion=completion,
        answer=answer,
    )


def granted(began: float) -> ClientCall:
    answer = GrantResult(lease=LEASE, now=NOW, expires_at=NOW + 100)
    return call("ann", "grant", began, began + 0.1, answer, ttl=100, holder="ann")


def enqueued(client: str, began: float, ended: float, revision: int, first: int | None = None) -> ClientCall:
    requests = [EnqueueRequest(job=NewJob(id="a", data=JobData(payload=client.encode())))]
    first = revision if first is None else first
    if first == revision:
        answer = EnqueueResult("queued", "nothing", first, revision)
    else:
        answer = EnqueueResult("updated", "waiting", first, revision)
    return call(client, "enqueue", began, ended, [answer], requests=requests)


def claimed(client: str, began: float, ended: float, *jobs: Job) -> ClientCall:
    return call(client, "claim", began, ended, ClaimResult(jobs=jobs, now=NOW), lease=LEASE, limit=10)


def job(payload: bytes, fence: int = 0, *, first: int = 10, revision: int = 10, enqueues: int = 1) -> Job:
    run = ActiveRun(fence=fence, lease=LEASE, holder="ann", claimed_at=NOW) if fence else None
    return Job(
        id="a",
        data=JobData(payload=payload),
        run_at=NOW,
        enqueued_at=NOW,
        seq=5,
        first=first,
        revision=revision,
        enqueues=enqueues,
        attempts=bool(fence),
        run=run,
    )


def why(*calls: ClientCall, snapshot: Snapshot | None = None) -> str:
    result = linearize([Round(calls=[granted(0)]), Round(calls=list(calls), snapshot=snapshot)], "q")
    assert not result.undecided
    return "" if result.linearizable else result.why


def test_overlapping_enqueues_may_take_effect_in_either_order() -> None:
    """The answers show the order: the update took effect after the first enqueue, whichever call began
    first.
    """
    assert not why(enqueued("bob", 1, 4, 11, first=10), enqueued("cat", 2, 3, 10))
    assert not why(enqueued("bob", 2, 3, 11, first=10), enqueued("cat", 1, 4, 10))


def test_calls_that_do_not_overlap_keep_their_order() -> None:
    assert "updated" in why(enqueued("bob", 1, 2, 11, first=10), enqueued("cat", 3, 4, 10))


def test_two_claims_of_one_run_are_rejected() -> None:
    accepted = enqueued("bob", 1, 2, 10)
    first, second = claimed("bob", 3, 6, job(b"bob", 20)), claimed("cat", 4, 5, job(b"bob", 21))

    assert "not due" in why(accepted, first, second)
    assert not why(accepted, first, claimed("cat", 4, 5))


def test_a_claim_may_skip_only_ids_that_another_call_touches() -> None:
    assert not why(enqueued("bob", 1, 4, 10), claimed("cat", 2, 3))
    assert "skipped" in why(enqueued("bob", 1, 2, 10), claimed("cat", 3, 4))


def test_a_claim_may_skip_the_id_of_an_overlapping_call_that_was_refused() -> None:
    """On a full disk, an enqueue holds the lock of its id until it is refused."""
    accepted, refused = enqueued("ann", 1, 2, 10), enqueued("bob", 3, 6, 11, first=10)
    refused.completion, refused.answer = "refused", "the disk is full"

    assert not why(accepted, refused, claimed("cat", 4, 5))
    assert "skipped" in why(accepted, refused, claimed("cat", 7, 8))


def test_the_reason_is_not_the_time_of_a_call_if_another_time_is_right() -> None:
    """A claim may take effect at the time of an earlier call. At this time, it skipped a job."""
    later = NOW + 11
    reaped = evolve(call("bob", "reap", 2.1, 2.2, [], limit=10), now=later)
    skipping = call("cat", "claim", 3, 4, ClaimResult(jobs=(), now=later), lease=LEASE, limit=10)

    assert "cat: claim: claim skipped 'a', which was due" == why(enqueued("bob", 1, 2, 10), reaped, skipping)


def test_an_unanswered_call_took_effect_or_did_not() -> None:
    """A call without an answer may take effect later, too, but not in part."""
    lost = enqueued("bob", 1, inf, 10)
    there, nothing = Snapshot(now=NOW, slots={"a": Slot(job(b"bob"))}), Snapshot(now=NOW, slots={"a": Slot()})
    torn = Snapshot(now=NOW, slots={"a": Slot(job(b"bo"))})

    assert not why(lost, snapshot=there)
    assert not why(lost, snapshot=nothing)
    assert "payload" in why(lost, snapshot=torn)


def test_an_unanswered_call_may_run_in_the_next_round() -> None:
    """The call of a cancelled caller may still run, and hold an id that a later claim skips."""
    first, lost = enqueued("ann", 1, 2, 10), enqueued("bob", 3, inf, 11, first=10)
    passing = claimed("cat", 4, 5)
    rounds = [Round(calls=[granted(0), first]), Round(calls=[lost]), Round(calls=[passing])]

    assert linearize(rounds, "q").linearizable
    assert not linearize([rounds[0], rounds[2]], "q").linearizable


def test_an_unanswered_call_may_take_effect_at_a_later_time() -> None:
    """The storage's clock does not go back to the time of the call."""
    lost = enqueued("bob", 1, inf, 10)
    tick = call("cat", "reap", 2, 3, [], limit=100)
    tick.now = NOW + 11
    clock_offset = msgspec.structs.replace(job(b"bob"), run_at=NOW + 11, enqueued_at=NOW + 11)
    snapshot = Snapshot(now=NOW + 11, slots={"a": Slot(clock_offset)})
    rounds = [Round(calls=[granted(0)]), Round(calls=[lost]), Round(calls=[tick], snapshot=snapshot)]

    assert linearize(rounds, "q").linearizable
    tick.now = NOW + 5
    assert not linearize(rounds, "q").linearizable


def test_a_renew_beside_a_reap_may_find_the_lease_dead_at_its_own_time() -> None:
    """The renew read the time, then the reap removed the lease, then the renew looked for it."""
    dead = {"q": RenewResult(alive=False, now=NOW)}
    renewed = call("bob", "renew", 1, 4, dead, lease=LEASE, ttl=100)
    reaped = call("cat", "reap", 2, 3, [], limit=10)
    reaped.now = NOW + 100

    assert not why(renewed, reaped)
    assert "alive is False; expected True" in why(renewed)


def test_a_lost_update_is_rejected() -> None:
    first, second = enqueued("bob", 1, 3, 10), enqueued("cat", 2, 4, 11, first=10)
    linearizable = Snapshot(now=NOW, slots={"a": Slot(job(b"cat", revision=11, enqueues=2))})
    lost = Snapshot(now=NOW, slots={"a": Slot(job(b"bob"))})

    assert not why(first, second, snapshot=linearizable)
    assert "in the snapshot" in why(first, second, snapshot=lost)


def test_a_refused_call_has_no_effect() -> None:
    refused = enqueued("bob", 1, 2, 10)
    refused.completion = "refused"

    assert not why(refused, snapshot=Snapshot(now=NOW, slots={"a": Slot()}))
    assert why(refused, snapshot=Snapshot(now=NOW, slots={"a": Slot(job(b"bob"))}))
