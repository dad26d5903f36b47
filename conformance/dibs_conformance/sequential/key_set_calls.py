"""Probe of batches whose request keys are kept as a key set: each acts as an enqueue with request keys.

Twin queues get the same jobs. One gets the requests by `enqueue`, the other by `enqueue_batch`, if the
storage has the methods of `dibs.storage.abilities`. Without them, both queues get requests with keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dibs.model.request_columns import RequestColumns, make_member
from dibs.model.requests import DEFAULT_UPDATE, OnConflict, Reject, Update
from dibs.model.results import EnqueueStatus
from dibs.storage.abilities import KeySets, ability
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps

NOW: Final = 1_767_225_600_000
HOUR: Final = 3_600_000
#: Milliseconds for which the queues remember request keys.
KEY_AGE: Final = 60_000
SET: Final = "write/0"
IDS: Final = ("new", "waiting", "active", "completed", "absent", "new")
#: Title -> the ids of a batch, and their rules; no rules stand for the default.
BATCHES: Final[dict[str, tuple[tuple[str, ...], tuple[OnConflict, ...]]]] = {
    "new ids": (("0", "1", "2", "3"), ()),
    "updates": (IDS[:4], (DEFAULT_UPDATE,) * 4),
    "rejects": (IDS[:4], (Reject(),) * 4),
    "one reject": (("completed",), (Reject(),)),
    "one update-only request": (("absent",), (Update(create=False),)),
    "all rules": (
        IDS,
        (
            Update(run_at="later"),
            Update(data=False),
            Update(run_at="never"),
            Reject(),
            Update(create=False),
            Reject(),
        ),
    ),
}


async def check_key_sets(storage: Storage) -> tuple[int, list[str]]:
    """Return the number of comparisons, and a message for each difference."""
    wrong: list[str] = []
    checks = 0
    for number, (title, (ids, conflicts)) in enumerate(BATCHES.items()):
        # The time of a storage never goes back.
        now = NOW + number * HOUR
        one, other = f"requests-{number}", f"columns-{number}"
        for queue in (one, other):
            await _prepare(storage, queue, now)
        columns = _columns(ids, conflicts, now)
        expected = [
            answer.status for answer in await storage.enqueue(one, columns.requests(SET), now=now + 1)
        ]
        comparisons = [
            ("the statuses", expected, await _send(storage, other, columns, now + 1)),
            ("the jobs", await _read(storage, one, now), await _read(storage, other, now)),
            *await _check_members(storage, other, columns, expected, now),
        ]
        checks += len(comparisons)
        wrong += [
            f"{title}: {what} of a batch with a key set are {found}, and those of requests are {wanted}"
            for what, wanted, found in comparisons
            if wanted != found
        ]
    return checks, wrong


def _columns(ids: Sequence[str], conflicts: Sequence[OnConflict], now: int) -> RequestColumns:
    count = len(ids)
    return RequestColumns(
        ids=list(ids),
        payloads=[b"" if id == "absent" else f'"{number}"'.encode() for number, id in enumerate(ids)],
        members=[make_member(bytes([number]) * 12, number) for number in range(count)],
        run_ats=[now + HOUR * (number % 3) for number in range(count)],
        priorities=[0 if id == "absent" else 2 for id in ids],
        attributes=[{} if id == "absent" else {"n": b"1"} for id in ids],
        conflicts=list(conflicts) or None,
    )


async def _prepare(storage: Storage, queue: str, now: int) -> None:
    """Make a completed id, an active id and a waiting id."""
    steps = (
        f"set request_key_age={KEY_AGE} retention=completed:hour; grant; enqueue completed payload=old; "
        "claim 1; complete completed; enqueue active payload=old; claim 1; enqueue waiting payload=old"
    )
    await play_steps(storage, HistoryCalls(queue), steps, now=now)


async def _send(
    storage: Storage, queue: str, columns: RequestColumns, now: int
) -> list[EnqueueStatus] | None:
    if (key_sets := ability(storage, KeySets)) is not None:
        statuses = await key_sets.enqueue_batch(queue, SET, 1, columns, now=now)
        return None if statuses is None else list(statuses)
    return [answer.status for answer in await storage.enqueue(queue, columns.requests(SET), now=now)]


async def _check_members(
    storage: Storage, queue: str, columns: RequestColumns, statuses: Sequence[EnqueueStatus], now: int
) -> list[tuple[str, Any, Any]]:
    """Return what the key set should hold and holds: now, after a second batch of this number, and later."""
    if (key_sets := ability(storage, KeySets)) is None:
        return []
    kept = dict(zip(columns.members, statuses, strict=True))
    jobs = await _read(storage, queue, now)
    other = RequestColumns(ids=["late"], payloads=[b"1"], members=[b"l" * 16])
    taken = await key_sets.enqueue_batch(queue, SET, 1, other, now=now + 2)
    before = await key_sets.read_key_set(queue, SET, now=now + KEY_AGE)
    after = await key_sets.read_key_set(queue, SET, now=now + 1 + KEY_AGE)
    pruned = await storage.prune(queue, 100, now=now + 1 + KEY_AGE)
    again = await storage.prune(queue, 100, now=now + 1 + KEY_AGE)
    return [
        ("the answer to a taken number", None, taken),
        ("the jobs after a taken number", jobs, await _read(storage, queue, now)),
        ("the members", (kept, 1, False), tuple(before)),
        ("the expired members", {}, after.statuses),
        ("the members of another set", {}, (await key_sets.read_key_set(queue, "write/1", now=now)).statuses),
        ("the pruned batches", (True, 0), (pruned.request_keys > 0, again.request_keys)),
    ]


async def _read(storage: Storage, queue: str, now: int) -> list[Any]:
    """Return the jobs of all ids, without their numbers."""
    ids = sorted({*IDS, *(f"{number}" for number in range(4)), "late"})
    slots = await storage.get(queue, ids, now=now + 2)
    return [
        (
            id,
            job and (job.data, job.run_at, job.enqueued_at, job.enqueues, job.run is None),
            after and (after.data, after.run_at, after.enqueues),
            outcome and outcome.kind,
        )
        for id, slot in zip(ids, slots, strict=True)
        for job, after, outcome in [(slot.current, slot.successor, slot.outcome)]
    ]
