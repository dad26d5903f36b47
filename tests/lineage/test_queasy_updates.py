"""queasy: enqueues of a known id, in every state and with every flag."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from dibs import Dibs, Queue, Refused, Update
from dibs.errors import DibsError
from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, Fail, RetryLater, RunAtRule, SettleAction
from tests.lineage.protocol_client import START, ProtocolClient

RULES: tuple[RunAtRule, ...] = ("always", "never", "later", "earlier")
#: (rule, old time, new time, expected time).
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


# -- an id without an active run -------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("data", [True, False])
async def test_an_unknown_id_waits_whatever_the_flags_say(
    protocol: ProtocolClient, rule: RunAtRule, *, data: bool
) -> None:
    """Contract 3: an unknown id becomes waiting, with counts 0 and the data and time of the request."""
    answer = await protocol.enqueue("a", Update(data=data, run_at=rule), payload=b"7", delay=5000)

    job = await protocol.current()
    assert ("queued", "nothing") == (answer.status, answer.found)
    assert (b"7", START + 5000, 0, None) == (job.data.payload, job.run_at, job.attempts, job.run)


async def test_delayed_is_waiting_with_a_later_time(protocol: ProtocolClient) -> None:
    """Contract 2: a job is due when run_at <= now."""
    await protocol.enqueue(delay=5000)

    counts = (await protocol.storage.counts(["q"], now=protocol.now))["q"]
    assert (1, 1) == (counts.waiting, counts.scheduled)
    protocol.now += 4999
    assert [] == await protocol.claim()
    protocol.now += 1
    assert "a" == (await protocol.claim_one()).id


@pytest.mark.parametrize(("rule", "old", "new", "expected"), TIMES)
async def test_each_rule_for_the_time_of_a_waiting_job(
    protocol: ProtocolClient, rule: RunAtRule, old: int, new: int, expected: int
) -> None:
    """Contract 3: "always" takes the new time, "never" the old, "later" and "earlier" compare both."""
    await protocol.enqueue(run_at=old)
    answer = await protocol.enqueue("a", Update(run_at=rule), run_at=new)

    assert ("updated", expected) == (answer.status, (await protocol.current()).run_at)


@pytest.mark.parametrize(("data", "expected"), [(True, (b"2", 5)), (False, (b"1", 3))])
async def test_data_is_replaced_whole_or_kept_whole(
    protocol: ProtocolClient, *, data: bool, expected: tuple[bytes, int]
) -> None:
    """Contract 3: an update with data replaces payload, attributes and priority together."""
    await protocol.enqueue(payload=b"1", priority=3, attributes={"who": b'"me"'})
    await protocol.enqueue("a", Update(data=data), payload=b"2", priority=5)

    kept = (await protocol.current()).data
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
    protocol: ProtocolClient, how: Update, expected: tuple[int, int]
) -> None:
    """Contract 3: reset_counts sets the counts to 0. Its default is the value of data."""
    await protocol.enqueue()
    await protocol.stall()
    await protocol.settle(await protocol.claim_one(), RetryLater(delay=0))
    await protocol.enqueue("a", how)

    job = await protocol.current()
    assert expected == (job.retries, job.stalls)


async def test_an_enqueue_says_what_it_did_by_default(queue: Queue) -> None:
    """The ticket has id and revision. A second enqueue of a waiting id replaces its data, time and counts."""
    first = await queue.enqueue({"to": "x"}, id="a", delay=60)
    second = await queue.enqueue({"to": "y"}, id="a")

    assert [("a", "queued"), ("a", "updated")] == [(t.id, t.verdict) for t in (first, second)]
    assert first.revision < second.revision
    async with queue.receive(wait=0) as claims:
        assert [{"to": "y"}] == [claim.data async for claim in claims]


# -- an id with an active run ----------------------------------------------------------------------------


@pytest.mark.parametrize("time", [{}, {"run_at": 0}, {"delay": 0}, {"delay": 5000}])
async def test_a_successor_is_never_handed_out_beside_the_run(
    protocol: ProtocolClient, time: dict[str, Any]
) -> None:
    """Contract 3: an id has one active run, also if its successor is due."""
    await protocol.enqueue(payload=b"1")
    first = await protocol.claim_one()
    answer = await protocol.enqueue(payload=b"2", **time)

    assert ("blocked", "active") == (answer.status, answer.found)
    protocol.now += 6000
    assert [] == await protocol.claim()
    assert first == await protocol.current()


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
@pytest.mark.parametrize("rule", RULES)
async def test_a_successor_runs_after_every_end_under_every_rule(
    protocol: ProtocolClient, rule: RunAtRule, end: SettleAction
) -> None:
    """Promise 4: the successor runs with its own data and time, and counts 0."""
    await protocol.enqueue()
    await protocol.settle(await protocol.claim_one(), RetryLater(delay=0))
    run = await protocol.claim_one()
    await protocol.enqueue("a", Update(run_at=rule), payload=b"2", delay=5000)
    await protocol.settle(run, end)

    protocol.now += 5000
    job = await protocol.claim_one()
    assert (b"2", 0, 1) == (job.data.payload, job.retries, job.attempts)


@pytest.mark.parametrize(("rule", "old", "new", "expected"), TIMES)
async def test_each_rule_for_the_time_of_a_blocked_job(
    protocol: ProtocolClient, rule: RunAtRule, old: int, new: int, expected: int
) -> None:
    """The fold law: after the end, the updates of the run are applied in order to an empty id. 0 is a valid
    time.
    """
    await protocol.enqueue()
    run = await protocol.claim_one()
    await protocol.enqueue(run_at=old)
    answer = await protocol.enqueue("a", Update(run_at=rule), run_at=new)
    assert ("blocked", "active+blocked") == (answer.status, answer.found)
    assert [] == await protocol.claim()
    await protocol.settle(run, Complete())

    assert expected == (await protocol.current()).run_at


@pytest.mark.parametrize(
    ("rule", "expected"), [("always", 3000), ("never", 8000), ("later", 8000), ("earlier", 3000)]
)
async def test_a_run_that_is_retried_meets_its_successor(
    protocol: ProtocolClient, rule: RunAtRule, expected: int
) -> None:
    """The fold law: after a retry, the updates of the run are applied to the returned job."""
    await protocol.enqueue(payload=b"1")
    run = await protocol.claim_one()
    await protocol.enqueue("a", Update(run_at=rule, data=False), payload=b"2", delay=3000)
    await protocol.settle(run, RetryLater(delay=8000))

    slot = await protocol.slot()
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
async def test_a_run_that_stalls_meets_its_successor(
    protocol: ProtocolClient, rule: RunAtRule, expected: int
) -> None:
    """The job returns at the time of the reap, and the update is applied to it."""
    await protocol.enqueue()
    await protocol.claim_one(await protocol.new_lease(1))
    await protocol.enqueue("a", Update(run_at=rule), payload=b"2", delay=3000)
    protocol.now += 1
    await protocol.reap()

    job = await protocol.current()
    assert (b"2", START + expected, 0) == (job.data.payload, job.run_at, job.stalls)


@pytest.mark.parametrize(("resets", "expected"), [(True, 0), (False, 1)])
async def test_an_update_during_a_run_resets_its_counts_or_leaves_them(
    protocol: ProtocolClient, *, resets: bool, expected: int
) -> None:
    await protocol.enqueue()
    run = await protocol.claim_one()
    await protocol.enqueue("a", Update(reset_counts=resets), payload=b"2")
    await protocol.settle(run, RetryLater(delay=0))

    assert (b"2", expected) == ((await protocol.current()).data.payload, (await protocol.current()).retries)


@pytest.mark.parametrize("how", [RetryLater(delay=0), Complete()])
async def test_every_update_during_a_run_counts_not_only_the_last(
    protocol: ProtocolClient, how: SettleAction
) -> None:
    """The fold law: a later update without data keeps the data of an earlier update."""
    await protocol.enqueue(payload=b"1")
    run = await protocol.claim_one()
    await protocol.enqueue(payload=b"2")
    await protocol.enqueue("a", Update(data=False), payload=b"3", delay=50)
    await protocol.settle(run, how)

    assert (b"2", START + 50) == ((await protocol.current()).data.payload, (await protocol.current()).run_at)


async def test_the_first_update_of_a_run_that_ends_counts_whole(protocol: ProtocolClient) -> None:
    """The fold law: the first update on an empty id counts completely, also without data."""
    await protocol.enqueue(payload=b"1")
    run = await protocol.claim_one()
    await protocol.enqueue("a", Update(data=False, run_at="never"), payload=b"2", delay=50)
    await protocol.settle(run, Complete())

    assert (b"2", START + 50) == ((await protocol.current()).data.payload, (await protocol.current()).run_at)


# -- cancel ----------------------------------------------------------------------------------------------


async def test_cancel_has_a_word_for_every_state(protocol: ProtocolClient) -> None:
    """Contract 3: cancel removes a waiting or blocked job; an active run continues."""
    assert "not_found" == await protocol.cancel()
    await protocol.enqueue()
    assert "cancelled" == await protocol.cancel()
    await protocol.enqueue()
    run = await protocol.claim_one()
    assert "active" == await protocol.cancel()
    await protocol.enqueue()
    assert "cancelled" == await protocol.cancel()

    slot = await protocol.slot()
    assert (run, None) == (slot.current, slot.successor)
    assert "done" == (await protocol.settle(run, Complete())).status
    assert "completed" == await protocol.cancel()


# -- refused requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [{"run_at": -1}, {"delay": -1}, {"run_at": math.nan}, {"run_at": 2**60}])
async def test_a_time_that_is_none_is_refused_and_leaves_nothing(
    protocol: ProtocolClient, time: dict[str, Any]
) -> None:
    """Promise 8: an invalid time is refused before any record is written."""
    with pytest.raises(DibsError):
        await protocol.enqueue(**time)

    assert (None, None) == ((await protocol.slot()).current, (await protocol.slot()).outcome)
    assert 0 == (await protocol.storage.counts(["q"], now=protocol.now))["q"].waiting


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
    """Generated ids sort by time. A given id is any text of 1 to 512 bytes without a null character."""
    drawn = [(await queue.enqueue(1)).id for _ in range(20)]
    given = [(await queue.enqueue(1, id=id)).id for id in ("a/b:c", "é'\"%{}", "x" * 512)]

    assert drawn == sorted(set(drawn))
    assert ["a/b:c", "é'\"%{}", "x" * 512] == given
    for id in ("", "x" * 513, "a\0b"):
        with pytest.raises(Refused):
            await queue.enqueue(1, id=id)


async def test_a_time_in_the_past_is_now(queue: Queue) -> None:
    """A time in the past is due now. A datetime without a time zone is refused."""
    await queue.enqueue(1, run_at=datetime(1999, 1, 1, tzinfo=UTC))
    with pytest.raises(Refused):
        await queue.enqueue(2, run_at=datetime(1999, 1, 1))  # noqa: DTZ001 - a naive datetime is the test

    async with queue.receive(wait=0) as claims:
        assert [1] == [claim.data async for claim in claims]
