"""queasy: enqueueing an id that is known, in every state and under every flag."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from dibs import Dibs, Queue, Refused, Update
from dibs.errors import DibsError
from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, Fail, RetryLater, RunAtRule, SettleAction
from tests.lineage.clerk import START, Clerk

RULES: tuple[RunAtRule, ...] = ("always", "never", "later", "earlier")
#: The rule, the time there was, the new one, and which of them holds.
TIMES: list[tuple[RunAtRule, int, int, int]] = [
    ("always", 5000, 0, 0),
    ("always", 5000, 9000, 9000),
    ("never", 5000, 0, 5000),
    ("never", 5000, 9000, 5000),
    ("later", 5000, 0, 5000),
    ("later", 5000, 9000, 9000),
    ("earlier", 5000, 0, 0),
    ("earlier", 5000, 9000, 5000),
]
ENDS: list[SettleAction] = [Complete(), Fail(error=Error(type="Oops")), Cancelled()]


# -- an id that nobody runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("data", [True, False])
async def test_an_unknown_id_waits_whatever_the_flags_say(
    clerk: Clerk, rule: RunAtRule, *, data: bool
) -> None:
    """Contract 3: nothing -> waiting, counts 0, with the data and the time that came."""
    answer = await clerk.put("a", Update(data=data, run_at=rule), payload=b"7", delay=5000)

    job = await clerk.current()
    assert ("queued", "nothing") == (answer.status, answer.found)
    assert (b"7", START + 5000, 0, None) == (job.data.payload, job.run_at, job.attempts, job.run)


async def test_delayed_is_waiting_with_a_later_time(clerk: Clerk) -> None:
    """Contract 2: due when run_at <= now, equality included; nobody runs early."""
    await clerk.put(delay=5000)

    counts = (await clerk.storage.counts(["q"], now=clerk.now))["q"]
    assert (1, 1) == (counts.waiting, counts.scheduled)
    clerk.now += 4999
    assert [] == await clerk.claim()
    clerk.now += 1
    assert "a" == (await clerk.take()).id


@pytest.mark.parametrize(("rule", "old", "new", "expected"), TIMES)
async def test_each_rule_for_the_time_of_a_waiting_job(
    clerk: Clerk, rule: RunAtRule, old: int, new: int, expected: int
) -> None:
    """Contract 3: always takes the new time, never keeps the old, later and earlier choose."""
    await clerk.put(run_at=old)
    answer = await clerk.put("a", Update(run_at=rule), run_at=new)

    assert ("updated", expected) == (answer.status, (await clerk.current()).run_at)


@pytest.mark.parametrize(("data", "expected"), [(True, (b"2", 5)), (False, (b"1", 3))])
async def test_data_is_replaced_whole_or_kept_whole(
    clerk: Clerk, *, data: bool, expected: tuple[bytes, int]
) -> None:
    """Contract 3: data replaces payload, attributes and priority together, or none of them."""
    await clerk.put(payload=b"1", priority=3, attributes={"who": b'"me"'})
    await clerk.put("a", Update(data=data), payload=b"2", priority=5)

    kept = (await clerk.current()).data
    assert expected == (kept.payload, kept.priority)
    assert (not data) == bool(kept.attributes)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Update(), (0, 0)),
        (Update(data=False), (1, 1)),
        (Update(reset_counts=False), (1, 1)),
        (Update(data=False, reset_counts=True), (0, 0)),
    ],
)
async def test_counts_are_reset_as_data_is_unless_said(
    clerk: Clerk, how: Update, expected: tuple[int, int]
) -> None:
    """Contract 3: reset_counts zeroes the counts, and is the same as data where nothing is said."""
    await clerk.put()
    await clerk.stall()
    await clerk.settle(await clerk.take(), RetryLater(delay=0))
    await clerk.put("a", how)

    job = await clerk.current()
    assert expected == (job.retries, job.stalls)


async def test_an_enqueue_says_what_it_did_by_default(queue: Queue) -> None:
    """A ticket with id and revision; a second enqueue of a waiting id replaces its data, time and counts."""
    first = await queue.enqueue({"to": "x"}, id="a", delay=60)
    second = await queue.enqueue({"to": "y"}, id="a")

    assert [("a", "queued"), ("a", "updated")] == [(t.id, t.verdict) for t in (first, second)]
    assert first.revision < second.revision
    async with queue.receive(wait=0) as claims:
        assert [{"to": "y"}] == [claim.data async for claim in claims]


# -- an id that runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [{}, {"run_at": 0}, {"delay": 0}, {"delay": 5000}])
async def test_a_successor_is_never_handed_out_beside_the_run(clerk: Clerk, time: dict[str, Any]) -> None:
    """Contract 3: never two active runs of one id, however early the successor's time is."""
    await clerk.put(payload=b"1")
    first = await clerk.take()
    answer = await clerk.put(payload=b"2", **time)

    assert ("blocked", "active") == (answer.status, answer.found)
    clerk.now += 6000
    assert [] == await clerk.claim()
    assert first == await clerk.current()


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
@pytest.mark.parametrize("rule", RULES)
async def test_a_successor_runs_after_every_end_under_every_rule(
    clerk: Clerk, rule: RunAtRule, end: SettleAction
) -> None:
    """Promise 4: with its own data and time and counts 0, never stuck."""
    await clerk.put()
    await clerk.settle(await clerk.take(), RetryLater(delay=0))
    run = await clerk.take()
    await clerk.put("a", Update(run_at=rule), payload=b"2", delay=5000)
    await clerk.settle(run, end)

    clerk.now += 5000
    job = await clerk.take()
    assert (b"2", 0, 1) == (job.data.payload, job.retries, job.attempts)


@pytest.mark.parametrize(("rule", "old", "new", "expected"), TIMES)
async def test_each_rule_for_the_time_of_a_blocked_job(
    clerk: Clerk, rule: RunAtRule, old: int, new: int, expected: int
) -> None:
    """The fold law: the updates of a run, applied in order to an empty id; 0 is a time like any other."""
    await clerk.put()
    run = await clerk.take()
    await clerk.put(run_at=old)
    answer = await clerk.put("a", Update(run_at=rule), run_at=new)
    assert ("blocked", "active+blocked") == (answer.status, answer.found)
    assert [] == await clerk.claim()
    await clerk.settle(run, Complete())

    assert expected == (await clerk.current()).run_at


@pytest.mark.parametrize(
    ("rule", "expected"), [("always", 3000), ("never", 8000), ("later", 8000), ("earlier", 3000)]
)
async def test_a_run_that_is_retried_meets_its_successor(
    clerk: Clerk, rule: RunAtRule, expected: int
) -> None:
    """The fold law: the updates of a run, applied to the returned job."""
    await clerk.put(payload=b"1")
    run = await clerk.take()
    await clerk.put("a", Update(run_at=rule, data=False), payload=b"2", delay=3000)
    await clerk.settle(run, RetryLater(delay=8000))

    slot = await clerk.slot()
    assert slot.current is not None
    assert (b"1", START + expected, 1) == (
        slot.current.data.payload,
        slot.current.run_at,
        slot.current.retries,
    )
    assert slot.successor is None


@pytest.mark.parametrize(
    ("rule", "expected"), [("always", 3000), ("never", 1), ("later", 3000), ("earlier", 1)]
)
async def test_a_run_that_stalls_meets_its_successor(clerk: Clerk, rule: RunAtRule, expected: int) -> None:
    """It comes back at the time of the reap, which is then folded as any other."""
    await clerk.put()
    await clerk.take(await clerk.lease(1))
    await clerk.put("a", Update(run_at=rule), payload=b"2", delay=3000)
    clerk.now += 1
    await clerk.reap()

    job = await clerk.current()
    assert (b"2", START + expected, 0) == (job.data.payload, job.run_at, job.stalls)


@pytest.mark.parametrize(("resets", "expected"), [(True, 0), (False, 1)])
async def test_an_update_during_a_run_resets_its_counts_or_leaves_them(
    clerk: Clerk, *, resets: bool, expected: int
) -> None:
    await clerk.put()
    run = await clerk.take()
    await clerk.put("a", Update(reset_counts=resets), payload=b"2")
    await clerk.settle(run, RetryLater(delay=0))

    assert (b"2", expected) == ((await clerk.current()).data.payload, (await clerk.current()).retries)


@pytest.mark.parametrize("how", [RetryLater(delay=0), Complete()])
async def test_every_update_during_a_run_counts_not_only_the_last(clerk: Clerk, how: SettleAction) -> None:
    """The fold law: a later update without data does not undo an earlier one with data."""
    await clerk.put(payload=b"1")
    run = await clerk.take()
    await clerk.put(payload=b"2")
    await clerk.put("a", Update(data=False), payload=b"3", delay=50)
    await clerk.settle(run, how)

    assert (b"2", START + 50) == ((await clerk.current()).data.payload, (await clerk.current()).run_at)


async def test_the_first_update_of_a_run_that_ends_counts_whole(clerk: Clerk) -> None:
    """The fold law: on an empty id the first update counts whole, whatever it says."""
    await clerk.put(payload=b"1")
    run = await clerk.take()
    await clerk.put("a", Update(data=False, run_at="never"), payload=b"2", delay=50)
    await clerk.settle(run, Complete())

    assert (b"2", START + 50) == ((await clerk.current()).data.payload, (await clerk.current()).run_at)


# -- cancel ----------------------------------------------------------------------------------------------


async def test_cancel_has_a_word_for_every_state(clerk: Clerk) -> None:
    """Contract 3: a waiting job goes, a blocked one goes without disturbing the run, a run goes on."""
    assert "not_found" == await clerk.cancel()
    await clerk.put()
    assert "cancelled" == await clerk.cancel()
    await clerk.put()
    run = await clerk.take()
    assert "active" == await clerk.cancel()
    await clerk.put()
    assert "cancelled" == await clerk.cancel()

    slot = await clerk.slot()
    assert (run, None) == (slot.current, slot.successor)
    assert "done" == (await clerk.settle(run, Complete())).status
    assert "completed" == await clerk.cancel()


# -- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [{"run_at": -1}, {"delay": -1}, {"run_at": math.nan}, {"run_at": 2**60}])
async def test_a_time_that_is_none_is_refused_and_leaves_nothing(clerk: Clerk, time: dict[str, Any]) -> None:
    """Promise 8: refused before anything is written."""
    with pytest.raises(DibsError):
        await clerk.put(**time)

    assert (None, None) == ((await clerk.slot()).current, (await clerk.slot()).outcome)
    assert 0 == (await clerk.storage.counts(["q"], now=clerk.now))["q"].waiting


@pytest.mark.parametrize("delay", [math.nan, math.inf, -1, "soon"])
async def test_a_delay_that_is_no_length_of_time_is_refused(queue: Queue, delay: float) -> None:
    with pytest.raises(Refused):
        await queue.enqueue(1, id="a", delay=delay)

    assert await queue.get("a") is None


async def test_none_is_data_and_what_json_cannot_say_is_refused(queue: Queue) -> None:
    await queue.enqueue(None, id="none")
    for value in (object(), {1, object()}, math.nan, "\0", "\ud800"):
        with pytest.raises(Refused):
            await queue.enqueue(value, id="bad")

    async with queue.receive(wait=0) as claims:
        assert [None] == [claim.data async for claim in claims]


async def test_ids_are_given_or_drawn(app: Dibs, queue: Queue) -> None:
    """Generated ids sort by time; a given one is any text of 1 to 512 bytes."""
    drawn = [(await queue.enqueue(1)).id for _ in range(20)]
    given = [(await queue.enqueue(1, id=id)).id for id in ("a/b:c", "é'\"%{}", "x" * 512)]

    assert drawn == sorted(set(drawn))
    assert ["a/b:c", "é'\"%{}", "x" * 512] == given
    for id in ("", "x" * 513, "a\0b"):
        with pytest.raises(Refused):
            await queue.enqueue(1, id=id)


async def test_a_time_in_the_past_is_now(queue: Queue) -> None:
    """What is due is due; a moment needs a zone to be one."""
    await queue.enqueue(1, run_at=datetime(1999, 1, 1, tzinfo=UTC))
    with pytest.raises(Refused):
        await queue.enqueue(2, run_at=datetime(1999, 1, 1))  # noqa: DTZ001 - the naive one is the case

    async with queue.receive(wait=0) as claims:
        assert [1] == [claim.data async for claim in claims]
