"""The requests of a small flow, one after the other, on a real Redis: each costs a round trip."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import BatchSummary
from dibs.flow.batch.segments import MAX_MEMBERS
from dibs.flow.running import evaluation
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.redis import RedisStorage
from tests.background_worker import background_worker
from tests.flow.driver import Driver, Graph
from tests.flow.tasks import Tasks
from tests.storage_urls import new_url

#: The most requests for a flow with one node and a fan-in, from its enqueue to its end: 4 enqueues, 2 reads,
#: 3 shared requests and 2 settlements. Claims without a settlement and waits are not counted.
MOST_REQUESTS = 12


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The requests of this process with settlements, enqueues, reads and ends, in order."""
    sent: list[tuple[str, Any]] = []

    def record(owner: Any, verb: str) -> None:
        real = getattr(owner, verb)

        async def call(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            sent.append((verb, first))
            return await real(self, first, *args, **kwargs)

        monkeypatch.setattr(owner, verb, call)

    for verb in ("enqueue", "get", "settle", "settle_and_claim", "report", "finish", "amend"):
        record(RedisStorage, verb)
    record(RedisStorage, "serve")
    direct = RedisStorage.start_enqueue

    def start_enqueue(self: Any, queue: str, *args: Any) -> bool:
        sent.append(("enqueue", queue))
        return direct(self, queue, *args)

    monkeypatch.setattr(RedisStorage, "start_enqueue", start_enqueue)
    # A busy machine may take longer for a flow than the time after which notes are stored.
    for name in ("SAVE_EVERY", "SAVE_TIMER", "FULL_READ"):
        monkeypatch.setattr(evaluation, name, 1000.0)
    return sent


@pytest.fixture
async def working(request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    tasks = Tasks(new_url("redis", request))
    async with tasks.app, background_worker(tasks.app, stop=True):
        yield tasks


def settled(steps: Any, queue: str) -> list[str]:
    """Return the kinds of the settlements of a queue in a request for several queues."""
    return [type(one.action).__name__ for step in steps if step.queue == queue for one in step.settlements]


async def run_flow(tasks: Tasks, number: int) -> None:
    flow = tasks.app.flow(id=f"f{number}")
    one = flow.add(tasks.load.bind(tasks.mark, number))
    flow.returns(flow.add(tasks.summarise.bind([one.output])))
    assert number * 2 == await (await flow.enqueue()).result(wait=30)


async def test_a_small_flow_takes_few_requests(working: Tasks, requests: list[tuple[str, Any]]) -> None:
    await run_flow(working, 0)
    await asyncio.sleep(0.1)  # for the settlement of its evaluation
    requests.clear()
    await run_flow(working, 1)
    verbs = [verb for verb, _ in requests]

    # A flow that ends within SAVE_EVERY stores no notes.
    assert not {"report", "amend", "finish"} & set(verbs)
    assert len(verbs) <= MOST_REQUESTS


async def test_one_request_settles_a_node_and_claims_the_evaluation(
    working: Tasks, requests: list[tuple[str, Any]]
) -> None:
    await run_flow(working, 0)
    requests.clear()
    await run_flow(working, 1)
    ends = [steps for verb, steps in requests if verb == "serve" and settled(steps, working.load.queue.name)]

    assert 1 == len(ends)
    assert EVALUATIONS == ends[0][-1].queue
    assert ends[0][-1].limit > 0


async def test_between_the_last_end_and_the_fan_in_is_no_read(
    working: Tasks, requests: list[tuple[str, Any]]
) -> None:
    """The process that ran the node knows its result, and that all parents of the fan-in have ended."""
    await run_flow(working, 0)
    requests.clear()
    await run_flow(working, 1)
    at = next(
        index
        for index, (verb, steps) in enumerate(requests)
        if verb == "serve" and settled(steps, working.load.queue.name)
    )
    until = next(
        index
        for index, (verb, steps) in enumerate(requests)
        if verb == "serve" and any(step.queue == working.summarise.queue.name for step in steps)
    )

    assert not [verb for verb, queue in requests[at + 1 : until] if verb == "get" and queue != FLOWS]


# -- The number of requests of a batch grows with its size, and no faster ----------------------------


@pytest.mark.parametrize("members", [5_000, pytest.param(100_000, marks=pytest.mark.chaos)])
async def test_the_requests_of_a_batch_grow_with_its_size(
    monkeypatch: pytest.MonkeyPatch, members: int
) -> None:
    """Count requests: 0.52, 0.52, 0.53, 0.54 for each of 2,000, 4,000, 8,000, 70,000 members, so O(n) in all.

    Timers never fire here. The driver would make them due at once, and a process keeps 64 flows: each of 100
    segments would be read again at each turn, which real timers do once a minute.
    """
    monkeypatch.setattr(evaluation, "FULL_READ", 1e9)
    segments = members // MAX_MEMBERS
    driver = Driver(rng=random.Random(1), timers=False)
    async with driver.opened():
        driver.storage.is_evaluating = True  # counts the requests
        finish = driver.task.options(attributes={"number": -1}).bind([])
        async with driver.app.batch(id="b", on_finish=finish, on_success=finish) as batch:
            jobs = (driver.task.options(attributes={"number": n}).bind([]) for n in range(members))
            assert members == await batch.enqueue_many(jobs)
        driver.storage.is_evaluating = False
        producer = driver.storage.calls.copy()
        assert "completed" == await driver.run("b", 4 * members + 20_000)
        calls = driver.storage.calls.copy() - producer
        summary = await batch.ticket.result(wait=0)
        driver.storage.calls.clear()
        driver.storage.is_evaluating = True
        results = [one.result async for one in batch.results()]

    assert BatchSummary(members=members, completed=members) == summary
    assert list(range(members)) == results
    assert [-1, -1, *range(members)] == sorted(driver.ran)
    # One enqueue for the batch, one for its close, and one for each segment.
    assert {"enqueue": 2 + segments, "amend": 1 + segments, "get": 1 + segments} == producer
    # The evaluations enqueue the members of each segment in one request, and each callback once.
    assert segments + 2 == calls["enqueue"]
    assert segments == calls["settle"]
    assert 1 == calls["finish"]
    # The seal of the batch, and the retention of each segment.
    assert 1 + segments == calls["amend"]
    assert calls["report"] <= 6 * segments
    assert calls["get"] < 2 * members
    # The results: the batch, each segment twice, and 200 members in a request.
    assert driver.storage.calls.total() < members / 100


# -- The number of reads and requests of a flow grows with its size, and no faster -------------------


NODES = 2_000


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
async def test_a_fan_in_of_two_thousand_nodes_takes_few_reads(
    monkeypatch: pytest.MonkeyPatch,
    shuffled: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(evaluation, "FULL_READ", 1e9)
    graph = Graph([[]] * NODES + [list(range(NODES))], [[]] * (NODES + 1), [[]] * (NODES + 1))
    driver = Driver(rng=random.Random(1))
    async with driver.opened():
        await driver.enqueue(graph, shuffled=shuffled)
        assert "completed" == await driver.run()

    assert NODES + 1 == len(driver.ran)
    calls = driver.storage.calls
    # Each node is read before its enqueue and as a result once, and each of the 2,000 evaluations reads about
    # one watched node.
    assert driver.storage.ids_read < 5 * NODES
    assert calls["get"] < 2 * NODES
    assert calls["enqueue"] == 3
    assert calls["report"] <= 3 + NODES // evaluation.UNSAVED_ENDS
    assert calls["settle"] == 1
