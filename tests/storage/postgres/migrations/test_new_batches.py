"""Batches of new jobs with some live ids: the set-based insert fails, and nothing of it remains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from dibs.model.job import Slot
from dibs.model.requests import EnqueueRequest, Reject, SettingsPatch, Update
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.migrations.test_fast_paths import BROKEN_ADMIT, TIMES, without_times

IDS = [f"{number:02}" for number in range(50)]


def batch(ids: list[str], key: str = "") -> list[EnqueueRequest]:
    return [
        EnqueueRequest(job=asked(id, b"new").job, request_key=f"{key}{id}" if key else None) for id in ids
    ]


@pytest.mark.parametrize("key", ["", "key-"])
@pytest.mark.parametrize("live", ["00", "30", "49"])
async def test_a_batch_with_a_live_id_enqueues_each_job_once(
    storage: PostgresStorage, live: str, key: str
) -> None:
    """The first ids of a batch are looked up before. The insert finds the others."""
    await storage.enqueue("q", [asked(live)])

    answers = await storage.enqueue("q", batch(IDS, key))
    slots = await storage.get("q", IDS)

    assert ["updated" if id == live else "queued" for id in IDS] == [answer.status for answer in answers]
    assert [2 if id == live else 1 for id in IDS] == [slot.current.enqueues for slot in slots if slot.current]
    seqs = [slot.current.seq for id, slot in zip(IDS, slots, strict=True) if slot.current and id != live]
    assert sorted(seqs) == seqs


async def test_an_active_id_in_a_batch_is_blocked(storage: PostgresStorage) -> None:
    await storage.enqueue("q", [asked("30")])
    await claimed(storage, "q", 1)

    answers = await storage.enqueue("q", batch(IDS))

    assert {"30"} == {id for id, answer in zip(IDS, answers, strict=True) if answer.status == "blocked"}


async def test_batches_of_the_same_ids_may_run_at_once(storage: PostgresStorage) -> None:
    """Each batch has its own order, and locks its live ids in sorted order first."""
    await storage.enqueue("q", batch(IDS[20:]))
    orders = [IDS, IDS[::-1], [*IDS[25:], *IDS[:25]]]

    for _ in range(10):
        answers = await asyncio.gather(*(storage.enqueue("q", batch(order)) for order in orders))
        assert {"updated"} >= {answer.status for one in answers for answer in one} - {"queued"}

    slots = await storage.get("q", IDS)
    assert [30 if id < "20" else 31 for id in IDS] == [
        slot.current.enqueues for slot in slots if slot.current
    ]


@pytest.mark.parametrize("level", ["runs", "all"])
async def test_a_batch_of_new_and_known_ids_is_stored_the_same(storage: PostgresStorage, level: str) -> None:
    """Series of four new ids go to enqueue_new(), unless an outcome is wanted."""
    given: Mapping[str, dict[str, Any]] = {
        "new": {},
        **{f"first {number}": {} for number in range(4)},
        "waiting": {},
        "rejected": {"on_conflict": Reject()},
        "active": {"on_conflict": Update(data=False)},
        "later": {"on_conflict": Update(run_at="later")},
    }
    requests = [replace(asked(id, b"2", delay=60_000), **more) for id, more in given.items()]
    requests += [asked("new", b"3"), *(asked(f"last {number}") for number in range(4))]
    requests += [replace(asked("done"), on_conflict=Reject()), asked("end")]
    found = []
    for queue, wanted in (("fast", False), ("general", True)):
        await storage.configure(queue, SettingsPatch(log_level=level))  # type: ignore[arg-type]
        await storage.enqueue(queue, [asked("done")])
        await storage.settle(queue, [done(job) for job in await claimed(storage, queue)])
        await storage.enqueue(queue, [asked("active")])
        await claimed(storage, queue)
        await storage.enqueue(queue, [asked("waiting")])
        answers = await storage.enqueue(queue, [replace(one, want_outcome=wanted) for one in requests])
        slots = await storage.get(queue, [*given, *(f"last {number}" for number in range(4)), "done", "end"])
        seqs = [slot.current.seq for slot in slots if slot.current]
        kinds = [(event.kind, event.id) for _, event in (await storage.events(queue)).events]
        statuses = [(one.status, one.found, one.first == one.revision) for one in answers]
        found.append((statuses, [without_numbers(slot) for slot in slots], kinds, order_of(seqs)))

    assert found[1] == found[0]
    before, after = ["updated", "queued", "blocked", "queued", "updated"], ["completed", "queued"]
    assert [*["queued"] * 5, *before, *["queued"] * 4, *after] == [status for status, *_ in found[0][0]]


def without_numbers(slot: Slot) -> Slot:
    """Return a slot without times and numbers, also in its run and its successor."""
    found = without_times(slot)
    current, successor = found.current, found.successor
    if current is not None and current.run is not None:
        current = replace(current, run=replace(current.run, fence=0, lease=None, claimed_at=0))
    if successor is not None:
        successor = replace(successor, seq=0, lo=0, hi=0, **TIMES)
    return replace(found, current=current, successor=successor)


def order_of(numbers: list[int]) -> list[int]:
    """Return the place of each number in sorted order."""
    return [sorted(numbers).index(number) for number in numbers]


async def test_the_new_jobs_of_a_mixed_batch_take_the_set_based_path(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    """admit() gets the known id and no other: here it answers each request with the id."""
    await storage.enqueue("q", [asked("b")])
    connection = await connect()
    await connection.execute(
        BROKEN_ADMIT.replace(
            "RAISE EXCEPTION 'admit is broken'",
            "RETURN (r.id, '', 0, 0, '{}', NULL, false, '', NULL, NULL)::admission",
        )
    )
    await connection.commit()

    results = await storage.enqueue("q", [asked(id) for id in "acdebfghijk"])

    assert [*["queued"] * 4, "b", *["queued"] * 6] == [result.status for result in results]
