"""Ten thousand concurrent calls take few round trips on every storage, and each gets its own answer."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from dibs import (
    Dibs,
    JobAbsent,
    JobCancelled,
    JobEnded,
    JsonSerde,
    Queue,
    Refused,
    Retention,
    Ticket,
    Update,
    current_job,
)
from dibs.client.connection.pending_calls import MAX_BATCH_ITEMS
from dibs.model.limits import MIB
from tests.client import handlers
from tests.client.manual_claims import claimed
from tests.client.verb_counts import counted

CALLS = 10_000


async def test_ten_thousand_calls_take_a_round_trip_for_a_thousand(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await any_queue.counts()
    calls = counted(any_app.storage, monkeypatch)
    tickets = await asyncio.gather(*(any_queue.enqueue(number) for number in range(CALLS)))

    # The first call is sent alone if no other call is in flight.
    assert CALLS // MAX_BATCH_ITEMS <= calls["enqueue"] <= CALLS // MAX_BATCH_ITEMS + 1
    assert len({ticket.id for ticket in tickets}) == CALLS
    revisions = [ticket.revision for ticket in tickets]
    assert revisions == sorted(revisions), "in the order of the calls"
    assert (await any_queue.counts()).waiting == CALLS

    calls.clear()
    states = await asyncio.gather(*(ticket.status() for ticket in tickets[: MAX_BATCH_ITEMS + 1]))
    assert {status.state for status in states} == {"waiting"}
    assert calls == {"get": 2}


class Slow(JsonSerde):
    """A serde that encodes one of the values slowly."""

    def encode(self, value: Any) -> bytes:
        if value == {"text": "slow"}:
            sum(range(1_000_000))
        return super().encode(value)


async def test_one_that_is_slow_large_refused_or_gives_up_harms_no_other(
    any_app: Dibs, any_queue: Queue
) -> None:
    queue = any_app.queue(f"{any_queue.name}-slow", serde=Slow())
    strange: dict[int, tuple[Any, dict[str, Any]]] = {
        10: ({"text": "slow"}, {}),
        20: ("x" * (MIB - 2), {}),
        30: ("x" * MIB, {}),
        40: (float("nan"), {}),
        50: ("unknown setting", {"prio": 1}),
        60: ("no such priority", {"priority": 5000}),
        70: ("no attribute", {"attributes": {"a": "\0"}}),
        80: ("gives up", {}),
        90: ("gives up", {}),
    }

    def call(number: int) -> asyncio.Task[Ticket[Any]]:
        data, settings = strange.get(number, (number, {}))
        return asyncio.create_task(queue.enqueue(data, **settings))

    calls = [call(number) for number in range(1000)]
    calls[80].cancel()
    await asyncio.sleep(0)
    calls[90].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    kinds = Counter(type(answer).__name__ for answer in answers)

    assert {30, 40, 50, 60, 70} == {n for n, answer in enumerate(answers) if isinstance(answer, Refused)}
    assert kinds == {"Ticket": 993, "Refused": 5, "CancelledError": 2}
    # The request of a cancelled call may have been sent already.
    assert (await queue.counts()).waiting in {993, 994}


# -- `supersede=True`: an enqueue that asks the active run of its id to end, and takes its place -----


SEEN: list[int] = []
STARTED = asyncio.Event()


async def render(version: int) -> int:
    SEEN.append(version)
    if version == 1:
        STARTED.set()
        await asyncio.Event().wait()
    return current_job().attempt


async def test_each_waiter_gets_the_end_of_its_own_run(any_queue: Queue) -> None:
    old = await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        new = await any_queue.enqueue(2, id="a", supersede=True)
        status = await new.status()
        await claim.retry()

    assert ("blocked", "blocked") == (new.verdict, status.state)
    with pytest.raises(JobCancelled):
        await old.result(wait=10)
    async with claimed(any_queue) as claim:
        assert (2, 1) == (claim.data, claim.attempt)
        await claim.complete("new")
    assert "new" == await new.result(wait=10)


async def test_a_run_that_completes_first_keeps_its_result(any_queue: Queue) -> None:
    old = await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        await any_queue.enqueue(2, id="a", on_conflict=Update(supersede=True))
        await claim.complete("old")

    assert "old" == await old.result(wait=10)


async def test_a_handler_is_cancelled_and_the_new_job_runs(app: Dibs) -> None:
    """The worker learns of the request by its heartbeat."""
    task = app.task(queue="render")(render)
    await task.options(id="page").enqueue(1)
    working = asyncio.create_task(app.work(until="empty", handle_signals=False))
    await asyncio.wait_for(STARTED.wait(), 30)
    new = await task.options(id="page", supersede=True).enqueue(2)

    assert 1 == await new.result(wait=30)
    await asyncio.wait_for(working, 30)
    assert [1, 2] == SEEN


# -- `Update(create=False)`: requests that change a live job and never make one ----------------------


ONLY = Update(create=False)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


async def test_an_id_without_a_live_job_stays_as_it_is(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(id="a", on_conflict=ONLY)

    assert ("absent", 0) == (ticket.verdict, ticket.revision)
    assert "absent" == (await ticket.status()).state
    assert await any_queue.get("a") is None
    for call in (ticket.result(wait=None), any_queue.enqueue_and_wait(id="a", wait=None, on_conflict=ONLY)):
        with pytest.raises(JobAbsent, match=f"{any_queue.name}/a: .*no live job") as absent:
            await asyncio.wait_for(call, 10)
        assert isinstance(absent.value, JobEnded)
        assert ("a", any_queue.name) == (absent.value.id, absent.value.queue)
    with pytest.raises(JobAbsent):
        await anext(ticket.progress())


async def test_a_completed_outcome_is_not_the_result_of_an_absent_request(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        await claim.complete("done")

    with pytest.raises(JobAbsent):
        await any_queue.enqueue_and_wait(id="a", on_conflict=ONLY)


async def test_a_task_is_updated_without_arguments(app: Dibs) -> None:
    task = app.task(queue="q", key="path")(handlers.thumbnail)
    await task.options(id="a").enqueue("p")
    update: Any = task.options(id="a", run_at=LATER, on_conflict=ONLY)
    ticket = await update.enqueue()
    await task.enqueue_many([update.bind()])
    same = await task.queue.enqueue(id="a", delay=60, on_conflict=Update(create=False, run_at="earlier"))
    status = await same.status()

    assert ["updated"] * 2 == [ticket.verdict, same.verdict]
    assert (["p"], "p") == (status.data["args"], status.key)
    assert status.run_at is not None
    assert status.run_at < LATER


# -- Subclasses of str, bytes and numbers count as their plain value on every storage ----------------


class Text(str):
    """A text that prints as something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "<Text>"


class Bytes(bytes):
    pass


class Number(int):
    pass


class Fraction(float):
    pass


class Name(str, enum.Enum):  # noqa: UP042 - its str() differs from its value, unlike that of a StrEnum
    ADA = "ada"


class Level(enum.IntEnum):
    HIGH = 7


SETTINGS: dict[str, dict[str, Any]] = {
    "id": {"id": Text("a")},
    "id of an Enum": {"id": Name.ADA},
    "request_key": {"request_key": Text("k")},
    "attributes": {"attributes": {Text("who"): Text("ada"), "n": [Number(1), Fraction(1.5), Name.ADA]}},
    "priority": {"priority": Number(3)},
    "priority of an Enum": {"priority": Level.HIGH},
    "delay": {"delay": Fraction(2.5)},
    "limits": {
        "timeout": Number(3),
        "max_retries": Number(3),
        "max_stalls": Level.HIGH,
        "lease": Fraction(1),
    },
    "retention": {"retention": Retention(completed=Number(5), failed=Fraction(5.5))},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
async def test_settings_of_a_job(any_queue: Queue, settings: dict[str, Any]) -> None:
    ticket = await any_queue.enqueue({Text("x"): Text("y")}, **settings)
    status = await ticket.status()

    assert "waiting" == status.state
    assert str is type(ticket.id)
    assert [(ticket.id, str)] == [(one.id, type(one.id)) async for one in any_queue.list("waiting")]
    if "attributes" in settings:
        assert {"who": "ada", "n": [1, 1.5, "ada"]} == status.attributes
        assert {str} == set(map(type, status.attributes))


async def test_data(any_queue: Queue) -> None:
    """Texts of template engines and members of an Enum are data, too. Bytes become base64 in JSON."""
    await any_queue.enqueue([Text("y"), Number(1), Fraction(0.5), Name.ADA, Bytes(b"x")], id="a")
    async with any_queue.receive(max_jobs=1, wait=5) as claims:
        claim = await anext(aiter(claims))
        await claim.complete(Text("done"))

        assert ["y", 1, 0.5, "ada", "eA=="] == claim.data
