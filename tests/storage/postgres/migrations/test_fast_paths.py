"""The fast paths of the Postgres functions: they store and answer the same as the general path."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dibs.model.job import Job, OutcomeRetention, Slot
from dibs.model.requests import Complete, SettingsPatch, Settlement
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked

TIMES = {"run_at": 0, "enqueued_at": 0, "first": 0, "revision": 0}


def without_times(slot: Slot) -> Slot:
    """Return a slot without its times and numbers, which differ from call to call."""
    current = None if slot.current is None else replace(slot.current, seq=0, **TIMES)
    outcome = slot.outcome
    if outcome is not None:
        expires_in = None if outcome.expires_at is None else outcome.expires_at - outcome.ended_at
        outcome = replace(outcome, fence=0, ended_at=0, claimed_at=0, expires_at=expires_in, **TIMES)
    return Slot(current, slot.successor, outcome, slot.dropped)


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"]])
async def test_new_jobs_are_stored_the_same_by_enqueue_new_and_admit(
    storage: PostgresStorage, ids: list[str]
) -> None:
    """A request key selects the general path, admit(); without one the batch goes to enqueue_new()."""
    plain = [asked(id, delay=60_000) for id in ids]
    keyed = [replace(request, request_key=request.job.id) for request in plain]

    fast = await storage.enqueue("fast", plain)
    general = await storage.enqueue("general", keyed)

    assert [(one.status, one.found) for one in general] == [(one.status, one.found) for one in fast]
    slots = {queue: await storage.get(queue, ids) for queue in ("fast", "general")}
    assert [without_times(slot) for slot in slots["general"]] == [
        without_times(slot) for slot in slots["fast"]
    ]


@pytest.mark.parametrize("level", ["off", "runs", "all"])
async def test_completions_are_stored_and_logged_the_same_by_complete_all_and_settle_one(
    storage: PostgresStorage, level: str
) -> None:
    """A retention in the settlement selects the general path, settle_one()."""
    slots, events = [], []
    for queue, retention in (("fast", None), ("general", OutcomeRetention())):
        await storage.configure(queue, SettingsPatch(log_level=level))  # type: ignore[arg-type]
        await storage.enqueue(queue, [asked("a"), asked("b")])
        jobs = await claimed(storage, queue)
        action = Complete(result=b"1", retention=retention)
        ends = [Settlement(id=job.id, fence=job.run.fence if job.run else 0, action=action) for job in jobs]
        assert ["done", "done"] == [result.status for result in await storage.settle(queue, ends)]
        slots.append([without_times(slot) for slot in await storage.get(queue, ["a", "b"])])
        logged = [event for _, event in (await storage.events(queue)).events]
        events.append([(event.kind, event.id, event.attempt, event.holder) for event in logged])

    assert slots[1] == slots[0]
    assert events[1] == events[0]


async def claimed(storage: PostgresStorage, queue: str) -> list[Job]:
    lease = (await storage.grant([queue], 60_000, "me")).lease
    return list((await storage.claim(queue, lease, 10)).jobs)
