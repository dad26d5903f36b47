"""The requests of a small flow, one after the other, on a real Redis: each costs a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs.flow.running import evaluation
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.redis import RedisStorage
from tests.background_worker import background_worker
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
